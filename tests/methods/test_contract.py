"""Contract of all methods: their needs, costs, ranks and errors."""

from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from method_options import VARIANTS
from toy_layer import KINDS, toy

import lrcore
from lrcore.layers.statistics import Moments
from lrcore.methods import METHODS, Method, a3, spectrum, truncate
from lrcore.methods import factors as factors_module
from lrcore.methods.latentllm import joint, joint_attention, sparse
from lrcore.methods.method import COMPONENT_MATRICES
from lrcore.models.layers import read_layer
from lrcore.system.errors import InputError


def mlp_only(layer, moments, options):
    """Return A3's neurons, without attention."""
    return {"mlp": a3.mlp_cur(layer, moments)} if layer.mlp is not None else {}


def attention_only(layer, moments, options):
    """Return A3's QK and OV, without the MLP."""
    return {name: factor for name, factor in a3.factor(layer, moments).items() if name != "mlp"}


PARTIAL = {
    "mlp_only": Method(
        name="mlp_only",
        paper="a test",
        summary="",
        notes="",
        factor=mlp_only,
        components=("mlp",),
        needs=frozenset({("mlp_hidden", "second")}),
        shrinks_kv=False,
        holds=COMPONENT_MATRICES,
    ),
    "attention_only": Method(
        name="attention_only",
        paper="a test",
        summary="",
        notes="",
        factor=attention_only,
        components=("qk", "ov"),
        needs=a3.NEEDS,
        shrinks_kv=True,
        holds=COMPONENT_MATRICES,
    ),
}
"""Methods that cover a part of the layer, held to the same contract."""
ROWS = METHODS | PARTIAL
LEFT = {("clover", "rotary"): {"q", "k"}}
"""Matrices of a method's slots that stay as they are, with some positions."""

EVERY = [
    pytest.param((method, options), kind, id="-".join(map(str, (method, *options.values(), *kind))))
    for method in ROWS
    for options in ({}, *VARIANTS.get(method, ()))
    for kind in KINDS
]


def solve(variant: tuple[str, dict], kind: tuple):
    """Return a layer of a kind and its factors by a method; cached for all tests."""
    return _solved(variant[0], tuple(variant[1].items()), kind)


@cache
def _solved(method: str, options: tuple, kind: tuple):
    row, case = ROWS[method], _case(kind)
    chosen = row.choose(dict(options))
    needs = row.reads(chosen) | {
        need for need in case.moments.values if need[1] in row.gradients(chosen)
    }
    return case, row.factor(
        case.layer,
        Moments({need: case.moments.values[need] for need in needs}, case.moments.tokens),
        chosen,
    )


@cache
def _case(kind: tuple):
    return toy(*kind)


def by_form(method: str, factors: dict) -> list[dict]:
    """Return the factors of each form of a method; all factors if it has a single form."""
    forms = ROWS[method].forms
    names = dict.fromkeys(forms[name].name if name in forms else "" for name in factors)
    return [
        {n: f for n, f in factors.items() if n not in forms or forms[n].name == form}
        for form in names
    ]


@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_declared_needs_suffice_and_slots_cover_the_declared_matrices(
    method: tuple[str, dict], kind: tuple
) -> None:
    case, factors = solve(method, kind)
    row, named = ROWS[method[0]], case.layer.matrices()
    if not method[1]:
        first = list(by_form(method[0], factors)[0])
        assert first == [c for c in row.components if c in factors]
    uncovered = LEFT.get((method[0], case.layer.attention.position), set())
    if method[1].get("forms") == "latents":
        uncovered = {"gate", "up", "down"}
    # a component spans several matrices; all components span the matrices of the method
    covered = sorted(row.covers & named.keys() - uncovered)
    for slots in by_form(method[0], factors):
        assert sum(f.cost.parameters(f.cost.full) for f in slots.values()) == sum(
            named[name].parameters for name in covered
        )
        assert covered == sorted(
            matrix for name in slots for matrix in row.matrices_of(name) if matrix in named
        )


@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_loss_curves_are_finite_and_fall_to_zero(method: tuple[str, dict], kind: tuple) -> None:
    _, factors = solve(method, kind)
    for name, factor in factors.items():
        s = spectrum(0, name, factor)
        assert s.values.shape == (s.cost.full // s.cost.step,)
        assert s.values.dtype == torch.float64
        assert torch.isfinite(s.values).all()
        assert (s.values >= 0).all()
        tails = [s.tail(rank) for rank in s.cost.ranks()]
        assert all(later <= earlier + 1e-12 for earlier, later in pairwise(tails))
        assert tails[-1] == 0
        assert s.energy(s.cost.full) == 1


@pytest.mark.one_in(4, each="method")
@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_parameters_and_cache_equal_the_cost_at_every_rank(
    method: tuple[str, dict], kind: tuple, monkeypatch
) -> None:
    """Rounds change numbers but not their count, so a single round suffices."""
    for module in (joint, joint_attention, sparse):
        monkeypatch.setattr(module, "alternate", partial(module.alternate, rounds=1))
    case, factors = solve(method, kind)
    for name, factor in factors.items():
        for rank in factor.cost.ranks():
            small = truncate(case.layer, factors, {name: rank})
            assert (
                case.layer.parameters - small.parameters
                == factor.cost.dense - factor.cost.parameters(rank)
            )
            saved = case.layer.attention.kv_values - small.attention.kv_values
            assert saved == factor.cost.kv_dense - factor.cost.kv(rank)


@pytest.mark.one_in(2, each="method")
@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_full_rank_keeps_the_layer_and_slots_are_independent(
    method: tuple[str, dict], kind: tuple
) -> None:
    case, factors = solve(method, kind)
    same = truncate(case.layer, factors, {name: f.cost.full for name, f in factors.items()})
    for name, projection in case.layer.matrices().items():
        assert torch.equal(same.matrices()[name].weight, projection.weight)
    for slots in by_form(method[0], factors):
        ranks = {name: f.cost.ranks()[len(f.cost.ranks()) // 2] for name, f in slots.items()}
        forward, backward = (
            truncate(case.layer, slots, dict(order))
            for order in (ranks.items(), reversed(ranks.items()))
        )
        for name, projection in forward.matrices().items():
            assert torch.equal(projection.weight, backward.matrices()[name].weight)


@pytest.mark.one_in(2, each="method")
@pytest.mark.parametrize(("method", "kind"), EVERY)
def test_float32_weights_stay_float32_and_results_are_reproducible(
    method: tuple[str, dict], kind: tuple
) -> None:
    case = _case(kind)
    single = case.layer.with_matrices(
        **{
            name: type(p)(p.weight.float(), None if p.bias is None else p.bias.float())
            for name, p in case.layer.matrices().items()
        }
    )
    row = ROWS[method[0]]
    once, twice = (
        [
            truncate(single, slots, {name: f.cost.ranks()[0] for name, f in slots.items()})
            for slots in by_form(method[0], row.factor(single, case.moments, row.choose(method[1])))
        ]
        for _ in range(2)
    )
    for first, second in zip(once, twice, strict=True):
        for name, projection in first.matrices().items():
            assert projection.weight.dtype == torch.float32
            assert torch.equal(projection.weight, second.matrices()[name].weight)


def test_every_method_file_has_a_row() -> None:
    shared = {"__init__", "factors", "attention_factors", "costs", "latents", "grams"}
    shared |= {"fused_forms", "heads", "method", "ranking", "attention_scores", "expert_factors"}
    shared |= {"codes", "error_bounds"}
    folder = Path(factors_module.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    files -= shared
    solvers = [getattr(method.factor, "solve", method.factor) for method in METHODS.values()]
    rows = {solver.__module__.rpartition(".")[2] for solver in solvers}
    assert files == rows, "a method is a file and a row: see 'A method' in docs/extending.md"


@pytest.mark.parametrize("method", ROWS)
def test_supported_cases_are_solved_and_all_others_raise(method: str) -> None:
    """A KV budget is supported if a slot caches fewer numbers."""
    supports = ROWS[method].describe()["supports"]
    for kind in KINDS:
        n_q, n_kv, position, bias, gated = kind
        met = {
            "mha" if n_q == n_kv else "gqa",
            "rotary" if position == "rotary" else "no_rotary",
            "gated_mlp" if gated else "plain_mlp",
        }
        if all(supports[case] for case in met | ({"biases"} if bias else set())):
            case, factors = solve((method, {}), kind)
            for slots in by_form(method, factors):
                ranks = {name: f.cost.ranks()[0] for name, f in slots.items()}
                assert truncate(case.layer, slots, ranks).parameters < case.layer.parameters
            assert supports["kv_budget"] == any(
                factor.cost.kv_per_rank > 0 for factor in factors.values()
            )
        else:
            with pytest.raises(InputError):
                solve((method, {}), kind)


@pytest.mark.parametrize("method", PARTIAL)
@pytest.mark.parametrize("family", ["tiny_llama", "tiny_opt"])
def test_method_for_a_part_of_the_layer_compresses(
    request, story_file, tmp_path, monkeypatch, family: str, method: str
) -> None:
    """All other matrices are unchanged; a ratio that is too high raises with the largest possible
    one.
    """
    monkeypatch.setitem(METHODS, method, PARTIAL[method])
    model = lrcore.load(str(request.getfixturevalue(family)))
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=32, method=method, ratio=0.1)
    small = lrcore.compress(model, recipe)
    for index in range(2):
        dense, cut = (read_layer(m.network, index).matrices() for m in (model, small))
        for name in dense.keys() - PARTIAL[method].covers:
            assert torch.equal(dense[name].weight, cut[name].weight)
        assert any(
            dense[name].weight.shape != cut[name].weight.shape
            for name in dense.keys() & PARTIAL[method].covers
        )
    folder = lrcore.save(small, tmp_path / "small")
    tokens = torch.arange(3, 35).unsqueeze(0)
    with torch.inference_mode():
        reloaded = lrcore.load(str(folder)).network(tokens).logits
        assert torch.equal(reloaded, small.network(tokens).logits)
    with pytest.raises(InputError, match="at most"):
        lrcore.compress(model, recipe.with_(ratio=0.95))
