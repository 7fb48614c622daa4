"""CARE against the `d x d` formulas of the paper and against brute force, to 1e-6 of the total."""

from dataclasses import asdict

import pytest
import torch
from toy_layer import HEAD, D, apply, moments_of, relative, toy

from lrcore.layers.layer import LowRank
from lrcore.layers.statistics import Moments
from lrcore.methods import METHODS, care
from lrcore.system.errors import InputError

MHA, GQA, GQA_BIAS = (
    (3, 3, "none", False, False),
    (4, 2, "rotary", False, True),
    (4, 2, "rotary", True, True),
)
KINDS = [MHA, (3, 3, "none", True, False), GQA, GQA_BIAS]
RANKS = [1, 4, 9, 15]


def covariance(case, alpha: float = 0.01):
    second = case.x.T @ case.x / len(case.x)
    return (1 - alpha) * second + alpha * second.trace() / len(second) * torch.eye(
        len(second), dtype=second.dtype
    )


def symmetric_root(m):
    values, vectors = torch.linalg.eigh(m)
    return vectors @ values.clamp_min(0).sqrt().diag() @ vectors.T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("rank", RANKS)
def test_factors_follow_equations_4_and_5(kind: tuple, name: str, rank: int) -> None:
    """For W [d, out], the paper computes `svd(C W)`, `W^a = C^{-1} U S^{1/2}` and `W^b = S^{1/2}
    V^T`.
    """
    case = toy(*kind)
    c, weight = covariance(case), getattr(case.layer.attention, name).weight
    u, s, vt = torch.linalg.svd(c @ weight.T, full_matrices=False)
    w_a, w_b = (
        torch.linalg.inv(c) @ u[:, :rank] @ s[:rank].sqrt().diag(),
        s[:rank].sqrt().diag() @ vt[:rank],
    )
    factor = care.factor(case.layer, case.moments)[name]
    small = getattr(factor.truncate(case.layer, rank).attention, name)
    assert isinstance(small, LowRank)
    assert torch.allclose(factor.values, s, rtol=1e-9, atol=1e-12)
    assert relative((small.weight - (w_a @ w_b).T).norm(), 0, weight.norm()) < 1e-9
    assert torch.allclose(
        small.up.norm(dim=0), w_b.norm(dim=1)
    )  # both sides have the same fraction of Sigma
    assert torch.allclose(small.down.norm(dim=1), w_a.norm(dim=0))
    assert (
        relative(((weight - small.weight) @ c).norm() ** 2, (s[rank:] ** 2).sum(), (s**2).sum())
        < 1e-9
    )
    bias = getattr(case.layer.attention, name).bias
    assert (small.bias is None) if bias is None else torch.equal(small.bias, bias)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", RANKS)
def test_root_whitening_is_optimal_for_equation_3_and_covariance_is_not(
    kind: tuple, rank: int
) -> None:
    """Equation 3 is the error of the states on the calibration tokens: whitening by the root
    attains the bound, and the paper's proxy exceeds it.
    """
    case = toy(*kind)
    options = [
        {"whitening": "root", "shrinkage": 0.0},
        {"shrinkage": 0.0},
        {"whitening": "identity"},
    ]
    root, paper, weight_only = (
        care.factor(case.layer, case.moments, care.CareOptions(**chosen)) for chosen in options
    )
    for name in ("k", "v"):
        dense = apply(getattr(case.layer.attention, name), case.x)
        bound = torch.linalg.svdvals(
            getattr(case.layer.attention, name).weight @ symmetric_root(covariance(case, 0.0))
        )

        def error(factors, name: str = name, dense: torch.Tensor = dense) -> float:
            small = getattr(factors[name].truncate(case.layer, rank).attention, name)
            states = case.x @ small.down.T @ small.up.T + (0 if small.bias is None else small.bias)
            return float(((dense - states) ** 2).sum(1).mean())

        total, best = float((bound**2).sum()), float((bound[rank:] ** 2).sum())
        assert relative(error(root), best, total) < 1e-9
        assert relative(float(root[name].values[rank:].square().sum()), best, total) < 1e-9
        assert error(paper) > best + 1e-4 * total
        assert error(weight_only) > best + 1e-4 * total


def test_identity_whitening_is_the_svd_of_the_weight() -> None:
    case = toy(*GQA_BIAS)
    factors = care.factor(case.layer, case.moments, care.CareOptions(whitening="identity"))
    for name in ("k", "v"):
        weight = getattr(case.layer.attention, name).weight
        u, s, vt = torch.linalg.svd(weight, full_matrices=False)
        small = getattr(factors[name].truncate(case.layer, 5).attention, name)
        assert torch.allclose(factors[name].values, s)
        assert torch.allclose(small.weight, u[:, :5] @ s[:5].diag() @ vt[:5], atol=1e-10)


def test_shrinkage_follows_its_formula_and_a_value_of_1_ignores_the_data() -> None:
    case = toy(*GQA)
    second = case.moments.second("attn_in")
    for alpha in (0.0, 0.3):
        assert torch.allclose(care.shrunk(second, alpha), covariance(case, alpha))
    assert torch.equal(care.shrunk(torch.zeros(D, D), 0.01), torch.eye(D, dtype=torch.float64))
    fully_shrunk, plain = (
        care.factor(case.layer, case.moments, care.CareOptions(shrinkage=1.0)),
        care.factor(case.layer, case.moments, care.CareOptions(whitening="identity")),
    )
    for name in ("k", "v"):
        results = [
            getattr(f[name].truncate(case.layer, 4).attention, name).weight
            for f in (fully_shrunk, plain)
        ]
        assert torch.allclose(*results, atol=1e-9)


def test_only_keys_and_values_change_and_the_cache_holds_the_ranks() -> None:
    case = toy(*GQA_BIAS)
    factors = care.factor(case.layer, case.moments)
    small = factors["v"].truncate(factors["k"].truncate(case.layer, 5), 9)
    assert small.attention.latent
    assert small.attention.kv_values == 14
    assert case.layer.attention.kv_values == 2 * 2 * HEAD  # KV parity
    for name in ("q", "o", "gate", "up", "down"):
        assert small.matrices()[name] is case.layer.matrices()[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 5, 14])
def test_joint_latent_is_the_truncated_svd_of_the_stacked_weights(kind: tuple, rank: int) -> None:
    case = toy(*kind)
    a, c = case.layer.attention, covariance(case)
    stacked = torch.cat((a.k.weight, a.v.weight))
    u, s, vt = torch.linalg.svd(stacked @ c, full_matrices=False)
    factor = care.factor(case.layer, case.moments, care.CareOptions(joint=True))["kv"]
    small = factor.truncate(case.layer, rank).attention
    literal = u[:, :rank] @ s[:rank].diag() @ vt[:rank] @ torch.linalg.inv(c)
    assert torch.allclose(torch.cat((small.k.weight, small.v.weight)), literal, atol=1e-9)
    assert torch.allclose(factor.values, s, rtol=1e-9, atol=1e-12)
    assert small.k.down is small.v.down
    assert small.kv_values == rank


def singular_case(reason: str):
    """Return a layer with singular moments, its moments and its inputs."""
    case = toy(*GQA_BIAS, tokens=10 if reason == "fewer tokens than dimensions" else 400)
    a, x = case.layer.attention, case.x.clone()
    k, v = a.k.weight.clone(), a.v.weight.clone()
    if reason == "duplicated row":
        k[1], v[3] = k[0], v[2]
    elif reason == "all-zero head":
        k[:HEAD], v[HEAD:] = 0, 0
    elif reason == "all-zero weight":
        k[:], v[:] = 0, 0
    elif reason == "constant activation":
        x[:] = x[0]
    layer = case.layer.with_matrices(k=type(a.k)(k, a.k.bias), v=type(a.v)(v, a.v.bias))
    return layer, moments_of(layer, x, case.a, case.z), x


REASONS = [
    "fewer tokens than dimensions",
    "duplicated row",
    "all-zero head",
    "all-zero weight",
    "constant activation",
]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("whitening", ["covariance", "root", "identity"])
@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_singular_layers_equal_the_pseudo_inverse_solution(
    reason: str, whitening: str, alpha: float
) -> None:
    layer, moments, x = singular_case(reason)
    second = x.T @ x / len(x)
    c = (1 - alpha) * second + alpha * second.trace() / D * torch.eye(D, dtype=second.dtype)
    metric = {"covariance": c, "root": symmetric_root(c), "identity": torch.eye(D, dtype=c.dtype)}[
        whitening
    ]
    for name, factor in care.factor(
        layer, moments, care.CareOptions(whitening=whitening, shrinkage=alpha)
    ).items():
        weight = getattr(layer.attention, name).weight
        u, s, vt = torch.linalg.svd(weight @ metric, full_matrices=False)
        for rank in (1, 3, 12):
            small = getattr(factor.truncate(layer, rank).attention, name)
            assert all(torch.isfinite(part).all() for part in (small.up, small.down, factor.values))
            literal = (
                u[:, :rank] @ s[:rank].diag() @ vt[:rank] @ torch.linalg.pinv(metric, rtol=1e-10)
            )
            result, expected = (
                float(((weight - w) @ metric).norm() ** 2) for w in (small.weight, literal)
            )
            assert abs(result - expected) <= 1e-6 * float((s**2).sum()) + 1e-20


def test_zero_moments_give_the_svd_of_the_weight() -> None:
    case = toy(*GQA)
    silent = Moments({("attn_in", "second"): torch.zeros(D, D, dtype=torch.float64)}, 1)
    for name, factor in care.factor(case.layer, silent).items():
        assert torch.allclose(
            factor.values, torch.linalg.svdvals(getattr(case.layer.attention, name).weight)
        )


def test_options_are_parsed_and_invalid_ones_raise() -> None:
    row = METHODS["care"]
    assert asdict(row.choose({})) == {
        "whitening": "covariance",
        "shrinkage": 0.01,
        "joint": False,
        "group": 0,
    }
    assert asdict(row.choose({"whitening": "root", "shrinkage": "0.1"})) == {
        "whitening": "root",
        "shrinkage": 0.1,
        "joint": False,
        "group": 0,
    }
    with pytest.raises(InputError, match="Did you mean 'identity'"):
        row.choose({"whitening": "identiy"})
    with pytest.raises(InputError, match="at most 1"):
        row.choose({"shrinkage": 2})
