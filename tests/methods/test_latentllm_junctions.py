"""LatentLLM: preconditioners and junctions (table 1, eq. 6-9) against the printed formulas."""

import pytest
import torch
from latentllm_reference import GQA, MHA, NAMES, scores
from toy_layer import relative, toy

from lrcore.layers.forms import BlockDiagonal, IdentityColumns, IdentityRows, dense
from lrcore.layers.linalg import roots
from lrcore.layers.statistics import TAPS
from lrcore.methods import latentllm
from lrcore.methods.latentllm.junction import JUNCTIONS, PRECONDITIONERS


def literal_preconditioner(name: str, second: torch.Tensor, absolute: torch.Tensor) -> torch.Tensor:
    """Return a preconditioner of table 1 as printed."""
    return {
        "identity": lambda: torch.eye(len(second), dtype=second.dtype),
        "diag_hessian": lambda: torch.diag(torch.linalg.inv(second).diagonal() ** -0.5),
        "diag_l1": lambda: torch.diag(absolute**0.5),
        "diag_l2": lambda: torch.diag(second.diagonal() ** 0.5),
        "covariance": lambda: second,
        "root_covariance": lambda: roots(second)[0],
    }[name]()


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
@pytest.mark.parametrize("name", NAMES)
def test_factors_are_the_svd_of_the_preconditioned_weight(preconditioner, name):
    case = toy(*GQA)
    factors = latentllm.factor(
        case.layer,
        case.moments,
        latentllm.LatentLLMOptions(attention="local", preconditioner=preconditioner, exponent=0.5),
    )
    weight, second = case.layer.matrices()[name].weight, case.moments.second(TAPS[name])
    p = literal_preconditioner(preconditioner, second, case.moments.values[TAPS[name], "abs"])
    u, s, v = torch.linalg.svd(weight @ p, full_matrices=False)
    assert torch.allclose(factors[name].values, s, rtol=1e-6, atol=1e-6 * float(s[0]))
    for rank in (1, 4, 11):
        literal = u[:, :rank] * s[:rank] @ v[:rank] @ torch.linalg.inv(p)
        result = factors[name].truncate(case.layer, rank).matrices()[name].weight
        # The inverse of the Hessian is damped by 1e-8, and squaring the covariance costs half of
        # the digits of its small directions.
        assert (
            relative(
                ((result - literal) @ roots(second)[0]).norm(),
                0.0,
                (weight @ roots(second)[0]).norm(),
            )
            < 1e-5
        )


@pytest.mark.parametrize("name", NAMES)
def test_root_covariance_has_the_lowest_error_equal_to_cholesky_whitening(name):
    case = toy(*GQA)
    weight, second = case.layer.matrices()[name].weight, case.moments.second(TAPS[name])
    lower = torch.linalg.cholesky(second)
    u, s, v = torch.linalg.svd(weight @ lower, full_matrices=False)

    def error(approximation):
        return float((((weight - approximation) @ lower) ** 2).sum())

    for rank in (2, 5, 9):
        cholesky = error(u[:, :rank] * s[:rank] @ v[:rank] @ torch.linalg.inv(lower))
        errors = {}
        for preconditioner in PRECONDITIONERS:
            factors = latentllm.factor(
                case.layer,
                case.moments,
                latentllm.LatentLLMOptions(attention="local", preconditioner=preconditioner),
            )
            errors[preconditioner] = error(
                factors[name].truncate(case.layer, rank).matrices()[name].weight
            )
        assert relative(errors["root_covariance"], cholesky) < 1e-9
        assert min(errors.values()) >= errors["root_covariance"] * (1 - 1e-9)


@pytest.mark.parametrize("attention", ["local", "split_head", "joint_qkv", "joint_qk"])
@pytest.mark.parametrize("kind", [(4, 2, "none", True, True), (4, 2, "rotary", True, True), MHA])
def test_junctions_change_only_the_parameter_count(attention, kind):
    case = toy(*kind)
    for rank in (3, 7):
        layers = {}
        for junction in JUNCTIONS:
            factors = latentllm.factor(
                case.layer,
                case.moments,
                latentllm.LatentLLMOptions(attention=attention, junction=junction),
            )
            small = case.layer
            for factor in factors.values():
                small = factor.truncate(small, rank)
            layers[junction] = small
        first = layers["left"]
        for junction, small in layers.items():
            for name in set(NAMES) - (set("qk") if attention == "joint_qk" else set()):
                assert torch.allclose(
                    small.matrices()[name].weight, first.matrices()[name].weight, atol=1e-9
                )
            for i in range(
                case.layer.attention.n_q
            ):  # J_i may map heads of q and k; their scores are unchanged
                assert torch.allclose(scores(small, case.x, i), scores(first, case.x, i), atol=1e-8)
            if attention == "local" and junction.endswith("identity"):
                for name in NAMES:
                    d_out, d_in = case.layer.matrices()[name].weight.shape
                    bias = d_out if case.layer.matrices()[name].bias is not None else 0
                    assert (
                        small.matrices()[name].parameters
                        == rank * (d_in + d_out) - rank * rank + bias
                    )


def test_identity_blocks_are_at_the_pivots():
    case = toy(*GQA)
    right = (
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(attention="local"))[
            "up"
        ]
        .truncate(case.layer, 5)
        .mlp.up
    )
    left_block = (
        latentllm.factor(
            case.layer,
            case.moments,
            latentllm.LatentLLMOptions(attention="local", junction="left_identity"),
        )["up"]
        .truncate(case.layer, 5)
        .mlp.up
    )
    assert isinstance(right.down, IdentityColumns)
    assert isinstance(left_block.up, IdentityRows)
    assert torch.equal(
        dense(right.down)[:, right.down.order[0, :5].long()], torch.eye(5, dtype=torch.float64)
    )
    assert torch.equal(
        dense(left_block.up)[left_block.up.place[0].argsort()[:5]],
        torch.eye(5, dtype=torch.float64),
    )
    assert right.down.rest.abs().max() < 50  # partial pivoting bounds the remaining columns
    split = (
        latentllm.factor(
            case.layer, case.moments, latentllm.LatentLLMOptions(attention="split_head")
        )["q"]
        .truncate(case.layer, 5)
        .attention.q
    )
    assert isinstance(split.up, BlockDiagonal)
