"""LatentLLM: joint UD (eq. 19-22, appendix H), step by step."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from latentllm_reference import MHA, PLAIN
from toy_layer import apply, toy

from lrcore.methods import latentllm
from lrcore.methods.latentllm import mlp


def ud(kind: tuple):
    case = toy(*kind)
    factor = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(mlp="joint"))[
        "joint_ud"
    ]
    x = case.moments.values["mlp_in", "sample"]
    assert torch.equal(x, case.x)  # the sample holds all tokens
    return case, factor, x


def decoupled_loss(fits, dense, x, z, a, y) -> float:
    """Return eq. 20 per token plus the prior of the two fits, each a pair of up and down."""
    up, down = fits
    loss = ((up(x) - z) ** 2).sum() + ((a - torch.relu(z)) ** 2).sum() + ((down(a) - y) ** 2).sum()
    for result, dense_ in zip(fits, dense, strict=True):
        gap = result.up @ result.down - dense_.weight
        loss = loss + len(x) * mlp.PRIOR * (gap @ dense_.second * gap).sum()
    return float(loss) / len(x)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("rank", [2, 7, 15])
def test_every_step_of_joint_ud_lowers_the_decoupled_loss(kind, rank):
    case, factor, x = ud(kind)
    up, down = factor.up, factor.down
    z = apply(case.layer.mlp.up, x)
    a = torch.relu(z)
    y = apply(case.layer.mlp.down, a)
    small_up, small_down = mlp.fit(up, x, z, rank), mlp.fit(down, a, y, rank)
    losses = [decoupled_loss((small_up, small_down), (up, down), x, z, a, y)]
    for _ in range(4):
        a = mlp.best_hidden(small_down, z, y)
        losses.append(decoupled_loss((small_up, small_down), (up, down), x, z, a, y))
        z = mlp.best_preactivation(small_up(x), a)
        losses.append(decoupled_loss((small_up, small_down), (up, down), x, z, a, y))
        small_up, small_down = mlp.fit(up, x, z, rank), mlp.fit(down, a, y, rank)
        losses.append(decoupled_loss((small_up, small_down), (up, down), x, z, a, y))
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(losses))
    assert losses[-1] < 0.95 * losses[0]
    last = mlp.alternate(up, down, x, rank)
    assert torch.allclose(last[0].up @ last[0].down, small_up.up @ small_up.down, atol=1e-9)
    assert torch.allclose(last[1].up @ last[1].down, small_down.up @ small_down.down, atol=1e-9)


def test_hidden_states_and_preactivations_equal_the_printed_closed_forms():
    """eq. 21 with the `d_f x d_f` inverse; eq. 22 against a fine grid."""
    case, factor, x = ud(PLAIN[0])
    z = apply(case.layer.mlp.up, x)
    y = apply(case.layer.mlp.down, torch.relu(z))
    down = mlp.fit(factor.down, torch.relu(z), y, 5)
    w = down.up @ down.down
    printed = torch.linalg.solve(
        w.T @ w + torch.eye(len(w.T)), (torch.relu(z) + (y - down.bias) @ w).T
    ).T
    assert torch.allclose(mlp.best_hidden(down, z, y), printed, atol=1e-10)
    linear, a = torch.meshgrid(torch.linspace(-2, 2, 21), torch.linspace(-2, 2, 21), indexing="ij")
    grid = torch.linspace(-4, 4, 8001)

    def loss(value):
        return (value - linear.unsqueeze(-1)) ** 2 + (a.unsqueeze(-1) - torch.relu(value)) ** 2

    best = loss(grid).min(-1).values
    assert torch.allclose(
        loss(mlp.best_preactivation(linear, a).unsqueeze(-1)).squeeze(-1), best, atol=1e-5
    )


@pytest.mark.parametrize("kind", PLAIN)
def test_joint_ud_without_rounds_is_the_local_solution(kind):
    case, factor, x = ud(kind)
    up, down = mlp.alternate(factor.up, factor.down, x, 6, rounds=0)
    local = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(mlp="local"))
    small = local["down"].truncate(local["up"].truncate(case.layer, 6), 6)
    assert torch.allclose(up.up @ up.down, small.mlp.up.weight, atol=1e-8)
    assert torch.allclose(down.up @ down.down, small.mlp.down.weight, atol=1e-8)
    loss = (local["up"].values[6:] ** 2).sum() + (local["down"].values[6:] ** 2).sum()
    assert float((factor.values[6:] ** 2).sum()) == pytest.approx(float(loss))


def test_joint_ud_has_a_lower_output_error_than_the_local_solution():
    wins = 0
    for seed in range(6):
        case = toy(*PLAIN[0], seed=seed)
        errors = {}
        for how in ("joint", "local"):
            small = case.layer
            for name, factor in latentllm.factor(
                case.layer, case.moments, latentllm.LatentLLMOptions(mlp=how)
            ).items():
                small = factor.truncate(small, 10) if name in ("joint_ud", "up", "down") else small
            gap = case.z @ case.layer.mlp.down.weight.T + case.layer.mlp.down.bias
            gap = gap - apply(small.mlp.down, torch.relu(apply(small.mlp.up, case.x)))
            errors[how] = float((gap**2).sum())
        wins += errors["joint"] < errors["local"]
    assert wins >= 5


@pytest.mark.parametrize("kind", [MHA, (3, 3, "none", False, False)])
def test_gated_or_non_relu_mlp_is_factorized_by_matrix(kind):
    case = toy(*kind)
    layer = replace(case.layer, mlp=replace(case.layer.mlp, activation="gelu"))
    assert set(latentllm.factor(layer, case.moments, latentllm.LatentLLMOptions(mlp="joint"))) >= {
        "up",
        "down",
    }


def test_few_tokens_give_a_finite_fit():
    case = toy(*PLAIN[0], tokens=10)
    small = (
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(mlp="joint"))[
            "joint_ud"
        ]
        .truncate(case.layer, 12)
        .mlp
    )
    out = apply(small.down, torch.relu(apply(small.up, case.x)))
    assert torch.isfinite(small.up.weight).all()
    assert torch.isfinite(small.down.weight).all()
    assert (
        float((out - case.z @ case.layer.mlp.down.weight.T - case.layer.mlp.down.bias).abs().max())
        < 1e-3
    )
