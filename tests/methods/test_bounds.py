"""Error bounds of MoDeGPT's propositions, compared with the paper and with measured errors."""

import pytest
import torch
from toy_layer import HEAD, KINDS, apply, rotated, toy

import lrcore
from lrcore.compression.pipeline.model_bounds import plan_bounds
from lrcore.layers.layer import heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.layers.statistics import Moments
from lrcore.methods import error_bounds as bounds
from lrcore.methods import modegpt

SLACK = 1 + 1e-9
UNDAMPED = modegpt.ModegptOptions(shrinkage=False)


def factors_of(case) -> dict:
    return modegpt.factor(case.layer, case.moments, UNDAMPED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_error_exceeds_its_bound(kind: tuple, seed: int) -> None:
    case = toy(*kind, seed=seed)
    for name, factor in factors_of(case).items():
        for rank in factor.cost.ranks()[:-1]:
            error, bound, statement = bounds.BOUNDS[name](case.layer, case.moments, factor, rank)
            assert 0 <= error <= bound * SLACK + 1e-12, (name, rank, statement)


@pytest.mark.parametrize("rank", [1, 30, 39])
def test_proposition_1_equals_the_printed_bound_if_it_applies(rank: int) -> None:
    """Use sums over tokens, as printed.

    A flat tail has eps = k (n - k) / n, so the proposition applies if a single neuron is removed or
    retained.
    """
    case = toy(3, 3, "none", True, False)
    g = torch.Generator().manual_seed(2)
    scales = torch.cat((torch.full((1,), 30.0), torch.ones(39))).double()
    z = torch.randn(400, 40, generator=g, dtype=torch.float64) * scales
    gram = z.T @ z
    moments = Moments({("mlp_hidden", "second"): gram / 400}, 400)
    factor = modegpt.mlp_nystrom(case.layer, moments, False)
    weight, selected, dropped = case.layer.mlp.down.weight, factor.order[:rank], factor.order[rank:]
    sigma = torch.linalg.svdvals(gram)
    ridge = sigma[rank:].sum() / rank
    eps = (
        (gram @ torch.linalg.inv(gram + ridge * torch.eye(40, dtype=torch.float64)))
        .diagonal()[dropped]
        .sum()
    )
    printed = torch.linalg.matrix_norm(weight, 2) ** 2 * torch.linalg.matrix_norm(
        torch.linalg.inv(gram), 2
    )
    printed = printed * eps**2 * 40**2 / (rank**2 * (1 - eps) ** 2) * (sigma[rank:] ** 2).sum()
    error, bound, statement = bounds.mlp_bound(case.layer, moments, factor, rank)
    small = factor.truncate(case.layer, rank).mlp.down.weight
    measured = ((z @ weight.T - z[:, selected] @ small.T) ** 2).sum()
    assert error * 400 == pytest.approx(float(measured), rel=1e-6, abs=1e-9)
    assert statement == ("Proposition 1" if eps < 1 else "Theorem 1")
    if eps < 1:
        assert bound * 400 == pytest.approx(float(printed), rel=1e-6)
    assert measured <= bound * 400
    assert statement == ("Theorem 1" if rank == 30 else "Proposition 1")


@pytest.mark.parametrize("rank", [9, 23])
def test_theorem_1_equals_the_printed_bound(rank: int) -> None:
    case = toy(3, 3, "none", True, False)
    factor = factors_of(case)["mlp"]
    weight, gram, selected = case.layer.mlp.down.weight, case.z.T @ case.z, factor.order[:rank]
    nystrom = gram[:, selected] @ torch.linalg.pinv(gram[selected][:, selected]) @ gram[selected]
    printed = (
        torch.linalg.matrix_norm(weight, 2) ** 2
        / torch.linalg.svdvals(gram)[-1]
        * ((gram - nystrom) ** 2).sum()
    )
    error, bound, statement = bounds.mlp_bound(case.layer, case.moments, factor, rank)
    small = factor.truncate(case.layer, rank).mlp.down.weight
    measured = ((case.z @ weight.T - case.z[:, selected] @ small.T) ** 2).sum(1).mean()
    assert error == pytest.approx(float(measured), rel=1e-6)
    assert statement == "Theorem 1"
    assert bound * len(case.z) == pytest.approx(float(printed), rel=1e-5)


@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "rotary", True, True)])
@pytest.mark.parametrize("rank", [2, 4, 6])
def test_proposition_2_equals_the_printed_bound_and_the_error_over_all_token_pairs(
    kind: tuple, rank: int
) -> None:
    case = toy(*kind)
    a = case.layer.attention
    factor = factors_of(case)["qk"]
    error, bound, _ = bounds.qk_bound(case.layer, case.moments, factor, rank)
    turn = rotated if a.position == "rotary" else lambda states: states
    q, k = (turn(apply(p, case.x)).unflatten(-1, (-1, HEAD)) for p in (a.q, a.k))
    measured = printed = 0.0
    for g in range(a.n_kv):
        pairs = factor.order[g, : rank // factor.cost.step]
        columns = pairs if factor.cost.step == 1 else torch.cat((pairs, pairs + HEAD // 2))
        group = range(g * a.group, (g + 1) * a.group)
        measured += sum(
            float(((q[:, i] @ k[:, g].T - q[:, i][:, columns] @ k[:, g][:, columns].T) ** 2).mean())
            for i in group
        )
        correlation_k = torch.linalg.svdvals(k[:, g].T @ k[:, g] / len(k)).sum()
        correlation_q = torch.linalg.svdvals(sum(q[:, i].T @ q[:, i] for i in group) / len(q)).sum()
        printed += float(((HEAD - rank) / HEAD) ** 2 * correlation_k * correlation_q)
    assert error == pytest.approx(measured, rel=1e-9)
    assert bound == pytest.approx(printed, rel=1e-9)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_proposition_3_equals_the_error(rank: int) -> None:
    """`sum_{j>k} sigma_j(C^{1/2} W_v W_o)^2`, `d x d` as printed, is the error on the tokens."""
    case = toy(3, 3, "none", False, False)
    a = case.layer.attention
    factor = factors_of(case)["ov"]
    error, bound, _ = bounds.vo_bound(case.layer, case.moments, factor, rank)
    root, _ = roots(case.x.T @ case.x / len(case.x))
    small = factor.truncate(case.layer, rank).attention
    printed = measured = 0.0
    for i in range(3):
        product = heads(a.v.weight, 3)[i].T @ output_heads(a.o.weight, 3)[i].T  # [d, d]
        printed += float((torch.linalg.svdvals(root @ product)[rank:] ** 2).sum())
        narrow = heads(small.v.weight, 3)[i].T @ output_heads(small.o.weight, 3)[i].T
        measured += float(((case.x @ (product - narrow)) ** 2).sum(1).mean())
    assert bound == pytest.approx(printed, rel=1e-6)
    assert error == pytest.approx(measured, rel=1e-6)
    assert error == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_opt"])
def test_every_slot_of_a_model_has_an_error_within_its_bound(
    folder: str, request, story_file
) -> None:
    model = lrcore.load(str(request.getfixturevalue(folder)))
    recipe = lrcore.Recipe(data=str(story_file), samples=6, seq_len=32, method="modegpt", ratio=0.3)
    factors = lrcore.prepare(model, recipe)
    plan = lrcore.allocate(factors, recipe)
    rows = plan_bounds(model, factors, plan)
    assert [(row["layer"], row["component"], row["rank"]) for row in rows] == [
        (*slot, rank) for slot, rank in plan.ranks.items()
    ]
    assert all(row["bound"] is None or 0 <= row["error"] <= row["bound"] * SLACK for row in rows)
    assert all(row["bound"] is not None for row in rows if row["component"] != "mlp")
    with pytest.raises(lrcore.InputError, match="modegpt"):
        plan_bounds(model, lrcore.prepare(model, recipe.with_(method="a3")), plan)
