"""LLM-Surgeon against brute force: costs and updates with Kronecker factors, K-OBD where nothing
correlates, and what the factors of the gradients are.
"""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny
from toy_layer import HEAD, toy

from lrcore.calibration.gradients import PASSES, collect
from lrcore.layer import output_heads
from lrcore.methods import llm_surgeon
from lrcore.models.layers import clone
from lrcore.statistics import Moments

TOKENS = torch.randint(3, 250, (3, 12), generator=torch.Generator().manual_seed(0))
KINDS = [(3, 3, "none", True, False), (4, 2, "rotary", False, True)]
K_OBD = llm_surgeon.SurgeonOptions(update=False)


def loss(case, name: str, change: torch.Tensor) -> float:
    """`tr(dW^T G dW A) / 2` of a change of the output or down projection."""
    a = case.moments.second({"o": "attn_out", "down": "mlp_hidden"}[name])
    return float((change.T @ case.moments.values[name, "curvature"] @ change @ a).trace() / 2)


def best(case, name: str, kept: torch.Tensor) -> torch.Tensor:
    """The weight with the columns `kept` alone that changes the loss least: by normal equations."""
    a = case.moments.second({"o": "attn_out", "down": "mlp_hidden"}[name])
    weight = case.layer.matrices()[name].weight
    return weight @ a[:, kept] @ torch.linalg.inv(a[kept][:, kept])


def changed(case, name: str, kept: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    old = case.layer.matrices()[name].weight
    return torch.zeros_like(old).index_copy(1, kept, weight) - old


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_is_the_best_and_costs_what_the_curve_says(kind) -> None:
    case = toy(*kind)
    factors = llm_surgeon.factor(case.layer, case.moments)
    width = kind[0] // kind[1] * HEAD
    inputs = torch.arange(kind[1] * width).view(kind[1], width)
    for name, slot, ranks in (("down", "mlp", (1, 17, 39)), ("o", "heads", range(1, kind[1]))):
        for rank in ranks:
            kept = factors[slot].order[:rank].sort().values
            kept = inputs[kept].flatten() if slot == "heads" else kept
            small = factors[slot].truncate(case.layer, rank).matrices()[name].weight
            order = torch.arange(len(kept)) if slot == "heads" else kept_order(factors[slot], rank)
            expected = best(case, name, kept)
            assert torch.allclose(small[:, order], expected, atol=1e-5)
            cost = loss(case, name, changed(case, name, kept, expected))
            assert float((factors[slot].values[rank:] ** 2).sum()) == pytest.approx(cost, rel=1e-5)


def kept_order(factor, rank: int) -> torch.Tensor:
    """Where the neurons of ascending index stand in a layer of that rank."""
    return factor.order[:rank].argsort()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_that_goes_is_the_cheapest_of_all(kind) -> None:
    case = toy(*kind)
    factors = llm_surgeon.factor(case.layer, case.moments)
    own = llm_surgeon.factor(case.layer, case.moments, K_OBD)
    count = kind[1]
    inputs = torch.arange(kind[0] * HEAD).view(count, -1)
    for name, slot, groups in (("o", "heads", inputs), ("down", "mlp", torch.arange(40)[:, None])):
        updated, plain = [], []
        for gone in groups:
            kept = torch.tensor([j for j in range(groups.numel()) if j not in gone])
            updated.append(loss(case, name, changed(case, name, kept, best(case, name, kept))))
            old = case.layer.matrices()[name].weight[:, kept]
            plain.append(loss(case, name, changed(case, name, kept, old)))
        assert int(factors[slot].order[-1]) == updated.index(min(updated))
        costs = torch.tensor(plain, dtype=torch.float64)
        assert torch.equal(own[slot].order, costs.sort(descending=True).indices)
        assert torch.allclose(own[slot].scores, costs.sort(descending=True).values)


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_correlates_the_surgeon_is_k_obd(kind) -> None:
    case = toy(*kind)
    alone = {
        need: value.diagonal().diag() if need[1] == "second" else value
        for need, value in case.moments.values.items()
    }
    moments = Moments(alone, case.moments.tokens)
    surgeon = llm_surgeon.factor(case.layer, moments)
    k_obd = llm_surgeon.factor(case.layer, moments, K_OBD)
    for name, rank in (("heads", 1), ("mlp", 12)):
        assert torch.equal(surgeon[name].order, k_obd[name].order)
        assert torch.allclose(surgeon[name].scores, k_obd[name].scores, rtol=1e-5)
        small, same = (one[name].truncate(case.layer, rank) for one in (surgeon, k_obd))
        found, expected = (
            one.matrices()["o" if name == "heads" else "down"] for one in (small, same)
        )
        order = kept_order(surgeon[name], rank) if name == "mlp" else slice(None)
        assert torch.allclose(found.weight[:, order], expected.weight, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_curvature_is_the_mean_square_of_the_gradients_by_outputs(family: str) -> None:
    """Against a backward pass with the outputs made leaves, one window at a time."""
    network = tiny(family).double()
    found = collect(network, TOKENS, lambda *_: None, PASSES["outputs"])
    assert not any(module._forward_hooks for module in network.modules())
    twin, kept = clone(network), []
    names = {"llama": "self_attn.o_proj", "opt": "self_attn.out_proj", "gpt2": "attn.c_proj"}
    places = [m for path, m in twin.named_modules() if path.endswith(names[family])]

    def leaf(_module, _args, out):
        kept.append(out.detach().requires_grad_())
        return kept[-1]

    for index, module in enumerate(places):
        handle, total = module.register_forward_hook(leaf), 0
        for window in TOKENS:
            kept.clear()
            logits = twin(window.unsqueeze(0), use_cache=False).logits[0, :-1]
            value = torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum")
            slope = torch.autograd.grad(value, kept[0])[0].flatten(0, -2)
            total = total + slope.T @ slope
        handle.remove()
        expected = total / TOKENS.numel()
        assert torch.allclose(found[index].values["o", "curvature"], expected, rtol=1e-4, atol=1e-6)


def test_heads_keep_their_order() -> None:
    """The columns of the output projection stand in the order of the heads that are left."""
    case = toy(3, 3, "none", False, False)
    layer = case.layer
    factor = llm_surgeon.factor(layer, case.moments)["heads"]
    assert factor.order.tolist() != sorted(factor.order.tolist())
    small = factor.truncate(layer, 2).attention
    left = factor.order[:2].sort().values
    assert torch.equal(small.kept_heads, left)
    refit = best(case, "o", (left.unsqueeze(1) * HEAD + torch.arange(HEAD)).flatten())
    assert torch.allclose(output_heads(small.o.weight, 2), output_heads(refit, 2), atol=1e-5)
    full = replace(factor, cost=replace(factor.cost, full=4)).truncate(layer, 3)
    assert torch.allclose(full.attention.o.weight, layer.attention.o.weight, atol=1e-9)
