"""LatentLLM: joint QK (algorithm 1, eq. 57-181) against printed formulas and brute force."""

from itertools import pairwise

import pytest
import torch
from latentllm_reference import GQA, MHA, literal_algorithm_1, scores
from toy_layer import D, apply, relative, rotated, toy

from lrcore.layers.layer import heads
from lrcore.layers.linalg import roots
from lrcore.methods import latentllm
from lrcore.methods.latentllm import hosvd, joint


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("rank", [3, 8, 13])
def test_joint_qk_equals_algorithm_1(kind, rank):
    case = toy(*kind)
    a = case.layer.attention
    factor = latentllm.factor(case.layer, case.moments)["joint_qk"]
    left_rank, right_rank = joint.side_ranks(
        rank, factor.pair.left_side.full, factor.pair.right_side.full
    )
    _, _, losses = literal_algorithm_1(
        a, roots(case.moments.second("attn_in"))[0], left_rank, right_rank
    )
    small = factor.truncate(case.layer, rank)
    error = sum(
        float(((scores(case.layer, case.x, i) - scores(small, case.x, i)) ** 2).mean())
        for i in range(a.n_q)
    )
    assert relative(error, losses[-1]) < 1e-6
    assert error <= factor.values[rank:].square().sum() * (1 + 1e-9)  # the bound of HOSVD


def test_parameters_with_all_junctions_follow_section_4_1():
    case = toy(*MHA)
    small = latentllm.factor(case.layer, case.moments)["joint_qk"].truncate(case.layer, 13)
    r, n, size = 13, 3, 8
    expected = 2 * r * (D + size * n) - 2 * r * r - size * size * n
    assert small.attention.q.parameters + small.attention.k.parameters == expected


@pytest.mark.parametrize(
    "kind", [(3, 3, "none", True, False), (4, 2, "none", True, True), (4, 2, "rotary", True, True)]
)
@pytest.mark.parametrize("junction", ["left", "right_identity"])
@pytest.mark.parametrize("rank", [4, 13])
def test_biases_are_part_of_the_score_error(kind, junction, rank):
    """eq. 96 by brute force over all pairs of tokens, against the loss of eq. 129-136."""
    case = toy(*kind)
    a = case.layer.attention
    factor = latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(junction=junction, window=0)
    )["joint_qk"]
    left_basis, right_basis = hosvd.alternate(
        factor.pair,
        *joint.side_ranks(rank, factor.pair.left_side.full, factor.pair.right_side.full),
    )
    small = factor.truncate(case.layer, rank)
    error = sum(
        float(((scores(case.layer, case.x, i) - scores(small, case.x, i)) ** 2).mean())
        for i in range(a.n_q)
    )
    assert relative(error, hosvd.loss(factor.pair, left_basis, right_basis)) < 1e-6
    ignored = latentllm.factor(
        case.layer,
        case.moments,
        latentllm.LatentLLMOptions(junction=junction, window=0, bias="keep"),
    )["joint_qk"].truncate(case.layer, rank)
    assert error < sum(
        float(((scores(case.layer, case.x, i) - scores(ignored, case.x, i)) ** 2).mean())
        for i in range(a.n_q)
    )


def test_biases_follow_the_printed_formula():
    """eq. 116 with J_i = I, without assuming that `A C_0 A^T` is orthonormal."""
    case = toy(3, 3, "none", True, False)
    small = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(junction="left"))[
        "joint_qk"
    ].truncate(case.layer, 5)
    mu, c0 = case.moments.mean("attn_in"), case.moments.centered("attn_in")
    for name in "qk":
        old, new = case.layer.matrices()[name], small.matrices()[name]
        a = new.down
        printed = (
            old.bias
            + old.weight @ mu
            - old.weight @ c0 @ a.T @ torch.linalg.pinv(a @ c0 @ a.T) @ a @ mu
        )
        assert torch.allclose(new.bias, printed, atol=1e-8)


def test_rotary_offsets_rotate_like_the_model():
    """`(R_m q) . (R_n k) = q . Theta_{n - m} k` (eq. 172-175)."""
    case = toy(4, 2, "rotary", False, True)
    a = case.layer.attention
    turns = joint.rotary_offsets(a.frequencies, a.qk_size, 6)
    q, k = (apply(p, case.x) for p in (a.q, a.k))
    rotated_q, rotated_k = rotated(q), rotated(k)
    for m, n in ((9, 9), (9, 8), (30, 24)):
        literal = (q[m, :8] @ turns[m - n] @ k[n, :8]).item()
        assert literal == pytest.approx((rotated_q[m, :8] @ rotated_k[n, :8]).item(), abs=1e-9)


@pytest.mark.parametrize("kind", [(3, 3, "rotary", False, True), (4, 2, "rotary", False, True)])
def test_window_sums_the_score_error_over_offsets(kind):
    """eq. 181 as printed; the sum is lower than for the joint factorization without rotations."""
    case = toy(*kind)
    a, root, rank = case.layer.attention, roots(case.moments.second("attn_in"))[0], 6
    turns = joint.rotary_offsets(a.frequencies, a.qk_size, 5)

    def error(small):
        total = 0.0
        for i in range(a.n_q):
            wq, wk = (
                heads(p.weight, n)[j] for p, n, j in ((a.q, a.n_q, i), (a.k, a.n_kv, i // a.group))
            )
            b = small.attention
            vq, vk = (
                heads(p.weight, n)[j] for p, n, j in ((b.q, a.n_q, i), (b.k, a.n_kv, i // a.group))
            )
            total += sum(
                float(((root @ (wq.T @ turn @ wk - vq.T @ turn @ vk) @ root) ** 2).sum())
                for turn in turns
            )
        return total

    factor = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(window=5))[
        "joint_qk"
    ]
    left_basis, right_basis = hosvd.alternate(
        factor.pair,
        *joint.side_ranks(rank, factor.pair.left_side.full, factor.pair.right_side.full),
    )
    result = error(factor.truncate(case.layer, rank))
    assert relative(result, hosvd.loss(factor.pair, left_basis, right_basis)) < 1e-6
    assert result < error(
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(window=0))[
            "joint_qk"
        ].truncate(case.layer, rank)
    )


@pytest.mark.parametrize(
    "kind",
    [
        MHA,
        GQA,
        (4, 2, "none", True, True),
        (4, 2, "rotary", True, True),
        (3, 3, "rotary", False, True),
    ],
)
@pytest.mark.parametrize("name", ["joint_qk", "joint_vo"])
@pytest.mark.parametrize("rank", [2, 7, 15])
def test_loss_never_rises_over_the_rounds(kind, name, rank):
    p = latentllm.factor(
        *(lambda case: (case.layer, case.moments))(toy(*kind)),
        latentllm.LatentLLMOptions(vo="joint"),
    )[name].pair
    ranks = joint.side_ranks(rank, p.left_side.full, p.right_side.full)
    losses = [hosvd.loss(p, *hosvd.alternate(p, *ranks, rounds)) for rounds in range(1, 9)]
    scale = float(p.left_values.sum())
    assert all(later <= earlier + 1e-12 * scale for earlier, later in pairwise(losses))
    assert (
        losses[0]
        <= float(p.left_values[ranks[0] :].sum() + p.right_values[ranks[1] :].sum()) + 1e-12 * scale
    )


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("rank", [3, 8, 13])
def test_rounds_stop_if_they_gain_nothing(kind, rank, monkeypatch):
    case, count = toy(*kind), []
    pair = latentllm.factor(case.layer, case.moments)["joint_qk"].pair
    ranks = joint.side_ranks(rank, pair.left_side.full, pair.right_side.full)
    all_rounds = hosvd.loss(pair, *hosvd.alternate(pair, *ranks, rounds=60, enough=-1.0))
    decompose = hosvd.eigh_descending
    monkeypatch.setattr(hosvd, "eigh_descending", lambda m: count.append(m) or decompose(m))
    few_rounds = hosvd.loss(pair, *hosvd.alternate(pair, *ranks, rounds=60))
    assert few_rounds == pytest.approx(all_rounds, rel=1e-4)
    assert len(count) < 2 * 60
