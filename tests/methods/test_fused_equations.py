"""The fused method against least squares, greedy search, and the methods that it combines."""

from dataclasses import replace

import pytest
import torch
from toy_layer import HEAD, apply, relative, toy

from lrcore.layers.elimination import elimination_order
from lrcore.layers.layer import heads
from lrcore.methods import a3, fused, modegpt

MHA, GQA = (3, 3, "none", True, False), (4, 2, "none", True, True)


def centered_score_error(case, small) -> float:
    """Return the mean squared change of the scores, centered over keys because softmax ignores
    their mean.
    """
    total = 0.0
    for i in range(case.layer.attention.n_q):
        scores = []
        for a in (case.layer.attention, small.attention):
            q, k = (
                apply(p, case.x).unflatten(-1, (n, -1)) for p, n in ((a.q, a.n_q), (a.k, a.n_kv))
            )
            s = q[:, i] @ k[:, i // a.group].T
            scores.append(s - s.mean(1, keepdim=True))
        total += float(((scores[0] - scores[1]) ** 2).mean())
    return total


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_centered_keys_leave_the_exact_tail_and_beat_a3_on_centered_scores(
    kind: tuple, rank: int
) -> None:
    case = toy(*kind)
    a = case.layer.attention
    factor = fused.qk_centered(a, case.moments)
    result = centered_score_error(case, factor.truncate(case.layer, rank))
    assert (
        relative(result, float((factor.values[rank:] ** 2).sum()), float((factor.values**2).sum()))
        < 1e-6
    )
    theirs = (a3.qk_svd if a.group == 1 else a3.qk_joint)(a, case.moments).truncate(
        case.layer, rank
    )
    assert result <= centered_score_error(case, theirs) * (1 + 1e-9)


def narrowed(case, small) -> torch.Tensor:
    """Return head outputs under the value map T of the small layer: a^ = T a."""
    a, b = case.layer.attention, small.attention
    maps = heads(b.v.weight, a.n_kv) @ torch.linalg.pinv(
        heads(a.v.weight, a.n_kv)
    )  # [n_kv, r, d_h]
    states = case.a.unflatten(-1, (a.n_q, HEAD))
    return torch.einsum("nhs,hrs->nhr", states, maps.repeat_interleave(a.group, 0)).flatten(1)


@pytest.mark.parametrize("kind", [MHA, GQA, (4, 2, "rotary", False, True)])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_ov_refit_is_least_squares_with_an_intercept(kind: tuple, rank: int) -> None:
    case = toy(*kind)
    small = fused.ov_refit(case.layer.attention, case.moments, False).truncate(case.layer, rank)
    inputs, target = narrowed(case, small), apply(case.layer.attention.o, case.a)
    design = torch.cat((inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)), 1)
    best = design @ torch.linalg.lstsq(design, target).solution
    total = ((target - target.mean(0)) ** 2).sum()
    assert (
        relative(
            ((apply(small.attention.o, inputs) - target) ** 2).sum(),
            ((best - target) ** 2).sum(),
            total,
        )
        < 1e-6
    )


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_ov_error_is_below_that_of_a3_and_modegpt(rank: int) -> None:
    for kind in (MHA, GQA):
        case = toy(*kind)
        a = case.layer.attention
        target = apply(a.o, case.a)
        errors = {}
        for name, solve in {
            "fused": fused.ov_refit,
            "a3": a3.ov_svd if a.group == 1 else a3.ov_joint,
            "modegpt": modegpt.vo_svd if a.group == 1 else modegpt.vo_group,
        }.items():
            small = solve(a, case.moments).truncate(case.layer, rank)
            errors[name] = float(
                ((apply(small.attention.o, narrowed(case, small)) - target) ** 2).sum()
            )
        assert errors["fused"] <= min(errors["a3"], errors["modegpt"]) * (1 + 1e-6)


@pytest.mark.parametrize("rank", [1, 9, 23, 39])
def test_mlp_refit_is_least_squares_with_an_intercept_and_its_curve_is_exact(rank: int) -> None:
    case = toy(*GQA)
    factor = fused.mlp_elimination(case.layer, case.moments, False)
    small = factor.truncate(case.layer, rank).mlp
    target, selected = apply(case.layer.mlp.down, case.z), case.z[:, factor.order[:rank]]
    design = torch.cat((selected, torch.ones(len(selected), 1, dtype=selected.dtype)), 1)
    best = ((design @ torch.linalg.lstsq(design, target).solution - target) ** 2).sum(1).mean()
    total = ((target - target.mean(0)) ** 2).sum(1).mean()
    result = ((apply(small.down, selected) - target) ** 2).sum(1).mean()
    assert relative(result, best, total) < 1e-6
    assert relative((factor.values[rank:] ** 2).sum(), best, total) < 1e-6
    theirs = modegpt.mlp_nystrom(case.layer, case.moments, False).truncate(case.layer, rank).mlp
    z = case.z[:, modegpt.mlp_nystrom(case.layer, case.moments, False).order[:rank]]
    assert result <= ((apply(theirs.down, z) - target) ** 2).sum(1).mean() * (1 + 1e-6)


def test_elimination_equals_greedy_search_over_all_refits() -> None:
    case = toy(*GQA)
    gram, weight = case.moments.centered("mlp_hidden")[:12, :12], case.layer.mlp.down.weight[:, :12]
    order, remaining = elimination_order(weight, gram, 1e-12).tolist(), list(range(12))

    def error(selected: list[int]) -> float:
        refit = weight @ gram[:, selected] @ torch.linalg.inv(gram[selected][:, selected])
        gap = weight.clone()
        gap[:, selected] -= refit
        return float((gap @ gram @ gap.T).trace())

    for expected in order[:0:-1]:
        best = min(remaining, key=lambda j: error([k for k in remaining if k != j]))
        assert best == expected
        remaining.remove(best)


def test_elimination_in_blocks_orders_every_column_once() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(1200, 1030, generator=g, dtype=torch.float64)
    order = elimination_order(torch.randn(8, 1030, generator=g), z.T @ z / 1200)
    assert sorted(order.tolist()) == list(range(1030))


def test_added_biases_are_counted() -> None:
    case = toy(4, 2, "rotary", False, True)
    for name, factor in fused.factor(case.layer, case.moments).items():
        small = factor.truncate(case.layer, factor.cost.ranks()[0])
        assert (
            case.layer.parameters - small.parameters
            == factor.cost.dense - factor.cost.parameters(factor.cost.ranks()[0])
        ), name
    assert (
        fused.ov_refit(case.layer.attention, case.moments, False)
        .truncate(case.layer, 2)
        .attention.o.bias
        is not None
    )


@pytest.mark.parametrize("norm", [None, "head"])
def test_narrowed_forms_use_pairs_for_matrices_that_cannot_be_narrowed(norm: str | None) -> None:
    case = toy(4, 2, "rotary", False, True)
    layer = replace(case.layer, attention=replace(case.layer.attention, qk_norm=norm))
    solved = fused.factor(layer, case.moments, fused.FusedOptions(forms="narrowed"))
    assert {*solved} == {"ov", "mlp"} | ({"qk"} if norm is None else {"q", "k"})
