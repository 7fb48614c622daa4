"""Removal of heads and neurons by FLAP and LLM-Pruner, and their allocation."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny
from toy_layer import HEAD, KINDS, apply, toy, watched

from lrcore.evaluation.contributions import mix_models
from lrcore.evaluation.local_errors import _layer_errors
from lrcore.layers.layer import Linear
from lrcore.methods import METHODS, flap, llm_pruner, spectrum, truncate
from lrcore.methods.heads import query_heads_of, remaining_groups, select_groups
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.load import LoadedModel
from lrcore.models.stream import LayerStream
from lrcore.ranks.budget import Budget
from lrcore.ranks.evidence import Evidence
from lrcore.ranks.policies.global_ranking import global_ranking
from lrcore.system.settings import NO_OPTIONS

TOKENS = torch.randint(3, 300, (2, 20), generator=torch.Generator().manual_seed(5))


def logits(network, tokens=TOKENS):
    with torch.inference_mode():
        return network(tokens).logits


def silenced(layer, groups):
    """Return the layer with the outputs of all heads outside `groups` multiplied by zero."""
    a = layer.attention
    mask = torch.zeros(a.n_q, a.v_size, dtype=a.o.weight.dtype)
    mask[query_heads_of(a, groups)] = 1
    return layer.with_matrices(o=Linear(a.o.weight * mask.flatten(), a.o.bias))


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", "gemma2", "phi", "gpt_neo", "gpt_neox", "bloom", "mpt", "smollm3"],
)
def test_network_without_heads_equals_the_network_with_silenced_heads(family) -> None:
    """Includes ALiBi, windows, partial rotary embeddings and norms per head; heads are removed
    twice.
    """
    network = tiny(family)
    small, quiet = clone(network), clone(network)
    for _ in range(2):
        for index in range(len(decoder_layers(network))):
            dense_layer, layer = (read_layer(loaded, index) for loaded in (network, small))
            groups = torch.arange(layer.attention.n_kv)[1:][-3:]
            if not len(groups):
                continue
            small_layer = replace(layer, attention=select_groups(layer.attention, groups))
            remaining = remaining_groups(dense_layer.attention, small_layer.attention)
            write_layer(quiet, silenced(dense_layer, remaining))
            write_layer(small, small_layer)
        assert torch.allclose(logits(small), logits(quiet), atol=1e-5)
        assert not torch.allclose(logits(small), logits(network), atol=1e-3)


@pytest.mark.parametrize("kind", KINDS[1:4])
def test_flap_replaces_removed_channels_by_their_means(kind) -> None:
    """If the removed channels are constant on the data, the output does not change."""
    case = toy(*kind)
    constant_neurons = torch.arange(0, 40, 3)
    up, gate = case.layer.mlp.up, case.layer.mlp.gate
    rows = [
        p and Linear(p.weight.index_fill(0, constant_neurons, 0.0), torch.ones(40).double())
        for p in (up, gate)
    ]
    layer = replace(case.layer, mlp=replace(case.layer.mlp, up=rows[0], gate=rows[1]))
    v = layer.attention.v
    value_weight = v.weight.index_fill(0, torch.arange(HEAD), 0.0)  # the values of the first group
    layer = layer.with_matrices(v=Linear(value_weight, torch.ones(len(value_weight)).double()))
    seen = watched(layer, case.x)
    factors = flap.factor(layer, seen.moments)
    small = truncate(layer, factors, {"heads": kind[1] - 1, "mlp": 40 - len(constant_neurons)})
    assert set(factors["mlp"].order[-len(constant_neurons) :].tolist()) == set(
        constant_neurons.tolist()
    )
    assert factors["heads"].order[-1] == 0
    remaining = torch.tensor([j for j in range(40) if j not in constant_neurons])
    assert torch.allclose(
        apply(small.mlp.down, seen.z[:, remaining]), apply(layer.mlp.down, seen.z)
    )
    heads = seen.a[:, kind[0] // kind[1] * HEAD :]
    assert torch.allclose(apply(small.attention.o, heads), apply(layer.attention.o, seen.a))
    assert factors["heads"].values[-1] < 1e-6 * factors["heads"].values[0]


@pytest.mark.parametrize("metric", ["wifv", "ifv", "wifn"])
def test_flap_ranks_by_the_printed_metrics(metric) -> None:
    case = toy(4, 2, "rotary", True, True)
    scored = {}
    for name, states in (("o", case.a), ("down", case.z)):
        weight = case.layer.matrices()[name].weight
        scored[name] = {
            "wifv": states.var(0, correction=0) * (weight**2).sum(0),
            "ifv": states.var(0, correction=0),
            "wifn": weight.abs().mean(0) * states.norm(dim=0) / len(states) ** 0.5,
        }[metric]
    squares = scored["o"] ** 2
    z = (squares - squares.mean()) / squares.std()
    heads = z.view(2, -1).mean(1)
    factors = flap.factor(case.layer, case.moments, flap.FlapOptions(metric))
    assert torch.allclose(factors["heads"].scores, heads.sort(descending=True).values)
    order = scored["down"].sort(descending=True).indices
    assert torch.equal(factors["mlp"].order, order)
    z = (scored["down"] - scored["down"].mean()) / scored["down"].std()
    assert torch.allclose(factors["mlp"].scores, z[order])


def test_loss_of_a_head_or_neuron_is_the_error_of_its_removal() -> None:
    case = toy(4, 2, "none", True, False)
    factors = flap.factor(case.layer, case.moments)
    small = truncate(case.layer, factors, {"heads": 1, "mlp": 39})
    remaining = factors["mlp"].order[:-1].sort().values
    for name, seen, retained in (
        ("down", case.z, remaining),
        ("o", case.a, torch.arange(2 * HEAD) + 2 * HEAD * int(factors["heads"].order[0])),
    ):
        dense = apply(case.layer.matrices()[name], seen)
        error = (dense - apply(small.matrices()[name], seen[:, retained])).square().sum(1).mean()
        factor = factors["mlp" if name == "down" else "heads"]
        assert float(factor.values[-1] ** 2) == pytest.approx(float(error), rel=1e-9)


def test_global_ranking_equals_that_of_the_paper() -> None:
    """AL-AM takes all structures in the order of their standardized scores up to the budget."""
    spectra = {}
    for layer in range(3):
        case = toy(4, 2, "none", False, True, seed=layer)
        factors = flap.factor(case.layer, case.moments)
        spectra |= {(layer, name): spectrum(layer, name, f) for name, f in factors.items()}
    dense = sum(s.cost.dense for s in spectra.values())
    for ratio in (0.2, 0.5):
        budget = Budget("params", int((1 - ratio) * dense), dense)
        targets = global_ranking(Evidence(spectra), budget, NO_OPTIONS)
        ranked = [(float(x), slot) for slot, s in spectra.items() for x in s.scores]
        ranked.sort(reverse=True)
        counts, spent = dict.fromkeys(spectra, 0), 0
        for _, slot in ranked:
            cost = spectra[slot].cost
            if spent + cost.per_rank > budget.limit - sum(s.cost.fixed for s in spectra.values()):
                break
            counts[slot], spent = counts[slot] + 1, spent + cost.per_rank
        for slot, s in spectra.items():
            rank = max(counts[slot], 1)
            share = s.cost.parameters(rank) / s.cost.dense
            assert targets[slot] == pytest.approx(share, abs=2.5 / s.cost.full), slot


@pytest.mark.parametrize("kind", ["param_first", "taylor", "abs", "wanda"])
def test_score_of_a_structure_is_the_sum_over_its_weights(kind) -> None:
    case = toy(4, 2, "rotary", True, True)
    weights, values = case.layer.matrices(), case.moments.values

    def vector_score(name, index):
        """Return the score of a row of q, k, v, gate or up, or of a column of o or down."""
        weight = weights[name].weight
        weight = weight[:, index] if name in ("o", "down") else weight[index]
        if kind == "abs":
            return float(weight.abs().sum())
        if kind == "wanda":
            seen = {"o": case.a, "down": case.z}.get(name)
            return (
                0.0
                if seen is None
                else float(weight.abs().sum() * seen[:, index].square().mean().sqrt())
            )
        return abs(float(values[name, kind][index]))

    factors = llm_pruner.factor(case.layer, case.moments, llm_pruner.PrunerOptions(kind))
    neurons = [sum(vector_score(name, j) for name in ("gate", "up", "down")) for j in range(40)]
    groups = [
        sum(vector_score(name, g * size + j) for name, size in SIZES.items() for j in range(size))
        for g in range(2)
    ]
    for name, expected in (("mlp", neurons), ("heads", groups)):
        order = factors[name].order.tolist()
        assert order == sorted(range(len(expected)), key=expected.__getitem__, reverse=True)
        scores = factors[name].scores.tolist()
        assert scores == pytest.approx([expected[j] for j in order], rel=1e-6)


SIZES = {"q": 2 * HEAD, "k": HEAD, "v": HEAD, "o": 2 * HEAD}


@torch.inference_mode()
def test_errors_and_contributions_of_a_model_with_removed_heads() -> None:
    dense = tiny("gpt2")
    small, stream = clone(dense), LayerStream(dense, TOKENS)
    for index in range(2):
        layer = read_layer(small, index)
        factors = flap.factor(layer, stream.run(index, METHODS["flap"].needs))
        write_layer(small, truncate(layer, factors, {"heads": 3, "mlp": 40}))
    models = [LoadedModel("a", network, None, "a", None) for network in (dense, small)]
    mixed = mix_models(*models, ("qk", "ov", "mlp"))
    assert torch.allclose(logits(mixed.network), logits(small), atol=1e-5)
    only, stream = mix_models(*models, ("ov",)), LayerStream(dense, TOKENS)
    networks = [model.network for model in (*models, only)]
    errors = _layer_errors(networks, 0, stream)
    assert errors["scores"] < 1e-9  # the remaining heads have their original queries and keys
    assert 0 < errors["ov"] == pytest.approx(errors["attention"], rel=1e-3)
    assert 0 < errors["mlp"] < 1
