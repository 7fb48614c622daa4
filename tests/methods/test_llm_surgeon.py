"""LLM-Surgeon against brute force: costs, updates, and curvatures of the outputs."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny
from toy_layer import HEAD, toy

from lrcore.compression.calibration.gradients import PASSES, collect
from lrcore.layers.layer import output_heads
from lrcore.layers.statistics import Moments
from lrcore.methods import llm_surgeon
from lrcore.models.layers import clone

TOKENS = torch.randint(3, 250, (3, 12), generator=torch.Generator().manual_seed(0))
KINDS = [(3, 3, "none", True, False), (4, 2, "rotary", False, True)]
UNDAMPED = llm_surgeon.SurgeonOptions(shrinkage=False)
K_OBD = llm_surgeon.SurgeonOptions(update=False)


def loss(case, name: str, change: torch.Tensor) -> float:
    """Return `tr(dW^T G dW A) / 2` of a change of the output or down projection."""
    a = case.moments.second({"o": "attn_out", "down": "mlp_hidden"}[name])
    return float((change.T @ case.moments.values[name, "curvature"] @ change @ a).trace() / 2)


def best(case, name: str, retained: torch.Tensor) -> torch.Tensor:
    """Return the weight with only the columns `retained` that changes the loss least, by normal
    equations.
    """
    a = case.moments.second({"o": "attn_out", "down": "mlp_hidden"}[name])
    weight = case.layer.matrices()[name].weight
    return weight @ a[:, retained] @ torch.linalg.inv(a[retained][:, retained])


def changed(case, name: str, retained: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    old = case.layer.matrices()[name].weight
    return torch.zeros_like(old).index_copy(1, retained, weight) - old


@pytest.mark.parametrize("kind", KINDS)
def test_remaining_weights_are_optimal_and_their_cost_is_the_curve(kind) -> None:
    case = toy(*kind)
    factors = llm_surgeon.factor(case.layer, case.moments, UNDAMPED)
    width = kind[0] // kind[1] * HEAD
    inputs = torch.arange(kind[1] * width).view(kind[1], width)
    for name, slot, ranks in (("down", "mlp", (1, 17, 39)), ("o", "heads", range(1, kind[1]))):
        for rank in ranks:
            retained = factors[slot].order[:rank].sort().values
            retained = inputs[retained].flatten() if slot == "heads" else retained
            small = factors[slot].truncate(case.layer, rank).matrices()[name].weight
            order = (
                torch.arange(len(retained)) if slot == "heads" else kept_order(factors[slot], rank)
            )
            expected = best(case, name, retained)
            assert torch.allclose(small[:, order], expected, atol=1e-5)
            cost = loss(case, name, changed(case, name, retained, expected))
            assert float((factors[slot].values[rank:] ** 2).sum()) == pytest.approx(cost, rel=1e-5)


def kept_order(factor, rank: int) -> torch.Tensor:
    """Return the positions of the neurons, in ascending order, in a layer of that rank."""
    return factor.order[:rank].argsort()


@pytest.mark.parametrize("kind", KINDS)
def test_first_removed_structure_is_the_cheapest(kind) -> None:
    case = toy(*kind)
    factors = llm_surgeon.factor(case.layer, case.moments, UNDAMPED)
    without_update = llm_surgeon.factor(case.layer, case.moments, K_OBD)
    count = kind[1]
    inputs = torch.arange(kind[0] * HEAD).view(count, -1)
    for name, slot, groups in (("o", "heads", inputs), ("down", "mlp", torch.arange(40)[:, None])):
        updated, plain = [], []
        for gone in groups:
            retained = torch.tensor([j for j in range(groups.numel()) if j not in gone])
            updated.append(
                loss(case, name, changed(case, name, retained, best(case, name, retained)))
            )
            old = case.layer.matrices()[name].weight[:, retained]
            plain.append(loss(case, name, changed(case, name, retained, old)))
        assert int(factors[slot].order[-1]) == updated.index(min(updated))
        costs = torch.tensor(plain, dtype=torch.float64)
        assert torch.equal(without_update[slot].order, costs.sort(descending=True).indices)
        assert torch.allclose(without_update[slot].scores, costs.sort(descending=True).values)


@pytest.mark.parametrize("kind", KINDS)
def test_surgeon_equals_k_obd_without_correlations(kind) -> None:
    case = toy(*kind)
    uncorrelated = {
        need: value.diagonal().diag() if need[1] == "second" else value
        for need, value in case.moments.values.items()
    }
    moments = Moments(uncorrelated, case.moments.tokens)
    surgeon = llm_surgeon.factor(case.layer, moments, UNDAMPED)
    k_obd = llm_surgeon.factor(case.layer, moments, K_OBD)
    for name, rank in (("heads", 1), ("mlp", 12)):
        assert torch.equal(surgeon[name].order, k_obd[name].order)
        assert torch.allclose(surgeon[name].scores, k_obd[name].scores, rtol=1e-5)
        small, same = (layer[name].truncate(case.layer, rank) for layer in (surgeon, k_obd))
        weight, expected = (
            layer.matrices()["o" if name == "heads" else "down"] for layer in (small, same)
        )
        order = kept_order(surgeon[name], rank) if name == "mlp" else slice(None)
        assert torch.allclose(weight.weight[:, order], expected.weight, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_curvature_is_the_mean_square_of_the_output_gradients(family: str) -> None:
    """Compare with a backward pass per window, with the outputs as leaves."""
    network = tiny(family).double()
    collected = collect(network, TOKENS, lambda *_: None, PASSES["outputs"])
    assert not any(module._forward_hooks for module in network.modules())
    twin, gradients = clone(network), []
    names = {"llama": "self_attn.o_proj", "opt": "self_attn.out_proj", "gpt2": "attn.c_proj"}
    modules = [m for path, m in twin.named_modules() if path.endswith(names[family])]

    def leaf(_module, _args, out):
        gradients.append(out.detach().requires_grad_())
        return gradients[-1]

    for index, module in enumerate(modules):
        handle, total = module.register_forward_hook(leaf), 0
        for window in TOKENS:
            gradients.clear()
            logits = twin(window.unsqueeze(0), use_cache=False).logits[0, :-1]
            value = torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum")
            slope = torch.autograd.grad(value, gradients[0])[0].flatten(0, -2)
            total = total + slope.T @ slope
        handle.remove()
        expected = total / TOKENS.numel()
        assert torch.allclose(
            collected[index].values["o", "curvature"], expected, rtol=1e-4, atol=1e-6
        )


def test_remaining_heads_keep_their_order() -> None:
    """The columns of the output projection follow the order of the remaining heads."""
    case = toy(3, 3, "none", False, False)
    layer = case.layer
    factor = llm_surgeon.factor(layer, case.moments, UNDAMPED)["heads"]
    assert factor.order.tolist() != sorted(factor.order.tolist())
    small = factor.truncate(layer, 2).attention
    retained = factor.order[:2].sort().values
    assert torch.equal(small.kept_heads, retained)
    refit = best(case, "o", (retained.unsqueeze(1) * HEAD + torch.arange(HEAD)).flatten())
    assert torch.allclose(output_heads(small.o.weight, 2), output_heads(refit, 2), atol=1e-5)
    full = replace(factor, cost=replace(factor.cost, full=4)).truncate(layer, 3)
    assert torch.allclose(full.attention.o.weight, layer.attention.o.weight, atol=1e-9)
