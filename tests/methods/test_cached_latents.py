"""Cached latents of `fused`, compared with losses computed from samples."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from toy_layer import apply, relative, toy

from lrcore.layers.layer import output_heads
from lrcore.layers.linalg import whitened_svd
from lrcore.methods import METHODS
from lrcore.methods.fused import FORMS
from lrcore.methods.fused_forms import cached_latents

PLAIN = [(3, 3, "none", True, False), (4, 2, "none", False, True)]
RANKS = (1, 5, 11)


def score_error(case, small) -> float:
    """Return the mean squared change of the scores of independent tokens, summed over heads."""
    a = case.layer.attention
    q = apply(a.q, case.x).unflatten(-1, (a.n_q, -1))
    lost = (apply(a.k, case.x) - apply(small.attention.k, case.x)).unflatten(-1, (a.n_kv, -1))
    heads = lost.repeat_interleave(a.group, 1)
    return float(torch.einsum("mhs,nhs->hmn", q, heads).square().mean((1, 2)).sum())


def output_error(case, small) -> float:
    """Return the mean squared change of the outputs of single values, summed over heads."""
    a = case.layer.attention
    lost = (apply(a.v, case.x) - apply(small.attention.v, case.x)).unflatten(-1, (a.n_kv, -1))
    out = output_heads(a.o.weight, a.n_q)
    changed = torch.einsum("hds,nhs->hnd", out, lost.repeat_interleave(a.group, 1))
    return float(changed.square().sum(-1).mean(1).sum())


ERRORS = {"latent_k": score_error, "latent_v": output_error}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", ERRORS)
def test_latent_leaves_the_tail_of_its_curve(kind: tuple, rank: int, name: str) -> None:
    case = toy(*kind)
    factor = cached_latents(case.layer, case.moments)[name]
    error = ERRORS[name](case, factor.truncate(case.layer, rank))
    tail, total = (float((factor.values[start:] ** 2).sum()) for start in (rank, 0))
    assert relative(error, tail, total) < 1e-9


@pytest.mark.parametrize(
    ("kind", "name"),
    [*product(PLAIN, ERRORS), ((4, 2, "rotary", True, True), "latent_v")],
)
@pytest.mark.parametrize("rank", RANKS)
def test_latent_has_a_lower_error_than_the_best_approximation_of_the_states(
    kind: tuple, name: str, rank: int
) -> None:
    case = toy(*kind)
    matrix, mean = name[-1], case.moments.mean("attn_in")
    old = case.layer.matrices()[matrix]
    up, _, down = whitened_svd(old.weight, case.moments.centered("attn_in"))
    weight = up[:, :rank] @ down[:rank]
    bias = (old.weight - weight) @ mean + (0 if old.bias is None else old.bias)
    plain = case.layer.with_matrices(**{matrix: replace(old, weight=weight, bias=bias)})
    factor = cached_latents(case.layer, case.moments)[name]
    error = ERRORS[name](case, factor.truncate(case.layer, rank))
    assert error < ERRORS[name](case, plain)


def test_budget_selects_the_forms_of_fused() -> None:
    fused = METHODS["fused"]
    assert fused.resolve_auto({}, "kv") == {"forms": "latents"}
    assert fused.resolve_auto({"forms": "auto"}, "kv") == {"forms": "latents"}
    assert fused.resolve_auto({"forms": "pairs"}, "kv") == {"forms": "pairs"}
    assert fused.resolve_auto({}, "params") == fused.resolve_auto({}, "auto") == {}
    assert {form.name for form in FORMS.values()} == {"narrowed", "pairs", "latent"}
