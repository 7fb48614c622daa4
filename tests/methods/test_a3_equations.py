"""A3 against the `d x d` formulas of the paper and against brute force, to 1e-6 of the total."""

import pytest
import torch
from toy_layer import HEAD, D, apply, relative, toy

from lrcore.layers.layer import heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.methods import a3

RANKS = [1, 2, 5, 7]


def augmented(weight, bias, x):
    """Return a weight with its bias as a column, and inputs with a column of ones."""
    column = torch.ones(len(x), 1, dtype=x.dtype)
    extra = torch.zeros(len(weight), 1, dtype=x.dtype) if bias is None else bias.unsqueeze(1)
    return torch.cat((weight, extra), 1), torch.cat((x, column), 1)


def score_error(case, small, i: int) -> float:
    """Return E (q_i . k - q^_i . k^)^2 over independent query and key tokens."""
    a, b = case.layer.attention, small.attention

    def states(attention, name, count, index):
        return apply(getattr(attention, name), case.x).unflatten(-1, (count, -1))[:, index]

    g = i // a.group
    dense = states(a, "q", a.n_q, i) @ states(a, "k", a.n_kv, g).T
    return float(((dense - states(b, "q", a.n_q, i) @ states(b, "k", a.n_kv, g).T) ** 2).mean())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", RANKS)
def test_theorem_3_2_equals_the_d_by_d_optimum_for_mha(bias: bool, rank: int) -> None:
    case = toy(3, 3, "none", bias, False)
    a = case.layer.attention
    small = a3.qk_svd(a, case.moments).truncate(case.layer, rank)
    for i in range(a.n_q):
        wq, x = augmented(
            heads(a.q.weight, 3)[i], None if a.q.bias is None else heads(a.q.bias, 3)[i], case.x
        )
        wk, _ = augmented(
            heads(a.k.weight, 3)[i], None if a.k.bias is None else heads(a.k.bias, 3)[i], case.x
        )
        root, _ = roots(x.T @ x / len(x))
        s = torch.linalg.svdvals(root @ wq.T @ wk @ root)
        assert (
            relative(score_error(case, small, i), float((s[rank:] ** 2).sum()), float((s**2).sum()))
            < 1e-6
        )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", RANKS)
def test_joint_qk_equals_the_stacked_d_by_d_optimum_for_gqa(bias: bool, rank: int) -> None:
    case = toy(4, 2, "none", bias, False)
    a = case.layer.attention
    small = a3.qk_joint(a, case.moments).truncate(case.layer, rank)
    for g in range(a.n_kv):
        stacked = []
        for i in range(g * a.group, (g + 1) * a.group):
            wq, x = augmented(
                heads(a.q.weight, 4)[i], None if a.q.bias is None else heads(a.q.bias, 4)[i], case.x
            )
            wk, _ = augmented(
                heads(a.k.weight, 2)[g], None if a.k.bias is None else heads(a.k.bias, 2)[g], case.x
            )
            root, _ = roots(x.T @ x / len(x))
            stacked.append(root @ wq.T @ wk @ root)
        s = torch.linalg.svdvals(torch.cat(stacked))
        result = sum(score_error(case, small, i) for i in range(g * a.group, (g + 1) * a.group))
        assert relative(result, float((s[rank:] ** 2).sum()), float((s**2).sum())) < 1e-6


def output_error(case, small, i: int) -> float:
    """Return E |W_o,i a_i - W_o,i^ a^_i|^2 with a^ = T a, T from the two value projections."""
    a, b, g = case.layer.attention, small.attention, i // case.layer.attention.group
    old, new = heads(a.v.weight, a.n_kv)[g], heads(b.v.weight, a.n_kv)[g]
    state_map = new @ torch.linalg.pinv(old)
    states = case.a.unflatten(-1, (a.n_q, HEAD))[:, i]
    dense = states @ output_heads(a.o.weight, a.n_q)[i].T
    return float(
        ((dense - states @ state_map.T @ output_heads(b.o.weight, a.n_q)[i].T) ** 2).sum(1).mean()
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", RANKS)
def test_theorem_3_3_equals_the_d_by_d_optimum_for_mha(bias: bool, rank: int) -> None:
    case = toy(3, 3, "none", bias, False)
    a = case.layer.attention
    small = a3.ov_svd(a, case.moments).truncate(case.layer, rank)
    for i in range(a.n_q):
        states = case.a.unflatten(-1, (a.n_q, HEAD))[:, i]
        u, s, vt = torch.linalg.svd(
            states @ output_heads(a.o.weight, a.n_q)[i].T / len(states) ** 0.5, full_matrices=False
        )
        assert u.shape[1] == vt.shape[0] == D
        assert (
            relative(
                output_error(case, small, i), float((s[rank:] ** 2).sum()), float((s**2).sum())
            )
            < 1e-6
        )


@pytest.mark.parametrize("rank", RANKS)
def test_joint_ov_equals_the_stacked_d_by_d_optimum_for_gqa(rank: int) -> None:
    """For GQA, the paper sums over values of single tokens and the output heads of a group."""
    case = toy(4, 2, "rotary", True, True)
    a = case.layer.attention
    factor = a3.ov_joint(a, case.moments)
    v = apply(a.v, case.x).unflatten(-1, (a.n_kv, HEAD))
    for g in range(a.n_kv):
        out = output_heads(a.o.weight, a.n_q)[g * a.group : (g + 1) * a.group]
        dense = torch.cat([v[:, g] @ w.T for w in out], 1) / len(v) ** 0.5
        s = torch.linalg.svdvals(dense)
        small = torch.cat(
            [
                v[:, g] @ factor.v_maps[g, :rank].T @ w[:, :rank].T
                for w in factor.out[g * a.group : (g + 1) * a.group]
            ],
            1,
        )
        result = ((dense - small / len(v) ** 0.5) ** 2).sum()
        assert relative(result, float((s[rank:] ** 2).sum()), float((s**2).sum())) < 1e-6


def test_rotary_pairs_are_ranked_by_pre_rotary_diagonals_and_kept_as_pairs() -> None:
    case = toy(4, 2, "rotary", True, True)
    a = case.layer.attention
    small = a3.qk_pairs(a, case.moments).truncate(case.layer, 4)
    q, k = (apply(p, case.x).unflatten(-1, (-1, HEAD)) for p in (a.q, a.k))
    for g in range(a.n_kv):
        score = sum(
            (q[:, i] ** 2).mean(0) * (k[:, g] ** 2).mean(0) for i in range(g * 2, g * 2 + 2)
        )
        best = sorted((score[: HEAD // 2] + score[HEAD // 2 :]).topk(2).indices.tolist())
        assert small.attention.rotary_pairs[g].tolist() == best
        columns = best + [j + HEAD // 2 for j in best]
        assert torch.equal(heads(small.attention.k.weight, 2)[g], heads(a.k.weight, 2)[g][columns])


def test_cost_of_dropping_columns_is_the_double_sum_over_them() -> None:
    """Without rotary embeddings, dropping P costs `sum_{j,l in P} (G_q)_jl (G_k)_jl`; the diagonal
    terms are the scores.
    """
    case = toy(3, 3, "none", True, False)
    q, k = (
        apply(p, case.x).unflatten(-1, (3, HEAD))[:, 0]
        for p in (case.layer.attention.q, case.layer.attention.k)
    )
    dropped = [1, 4, 6]
    error = ((q[:, dropped] @ k[:, dropped].T) ** 2).mean()
    gram_q, gram_k = q.T @ q / len(q), k.T @ k / len(k)
    assert relative((gram_q * gram_k)[dropped][:, dropped].sum(), error) < 1e-9


def test_mlp_keeps_neurons_with_the_largest_energy_times_column_norm() -> None:
    case = toy(4, 2, "rotary", False, True)
    m = case.layer.mlp
    root, _ = roots(case.moments.second("mlp_hidden"))
    literal = (root**2).sum(0) * (m.down.weight**2).sum(
        0
    )  # eq. 15, with the square root as printed
    small = a3.mlp_cur(case.layer, case.moments).truncate(case.layer, 11).mlp
    selected = literal.topk(11).indices.sort().values
    assert torch.equal(small.down.weight, m.down.weight[:, selected])
    assert torch.equal(small.gate.weight, m.gate.weight[selected])
