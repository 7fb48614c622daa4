"""MoDeGPT against slow evaluations of its printed formulas."""

import pytest
import torch
from toy_layer import HEAD, apply, relative, rotated, toy

from lrcore.layers.layer import heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.methods import modegpt


@pytest.mark.parametrize("rank", [1, 9, 23, 39])
def test_nystrom_mlp_equals_leverage_selection_with_a_pseudo_inverse_refit(rank: int) -> None:
    case = toy(3, 3, "none", True, False)
    factor = modegpt.mlp_nystrom(case.layer, case.moments, False)
    gram = case.z.T @ case.z
    leverage = (gram @ torch.linalg.inv(gram + torch.eye(len(gram)))).diagonal()
    selected = factor.order[:rank]
    assert leverage[selected].min() >= leverage.sort(descending=True).values[rank - 1] - 1e-12
    weight = case.layer.mlp.down.weight
    refit = weight @ gram[:, selected] @ torch.linalg.pinv(gram[selected][:, selected])
    small = factor.truncate(case.layer, rank).mlp
    dense = case.z @ weight.T
    result, expected = (
        ((dense - case.z[:, selected] @ w.T) ** 2).sum(1).mean() for w in (small.down.weight, refit)
    )
    total = (dense**2).sum(1).mean()
    assert relative(result, expected, total) < 1e-6
    assert relative((factor.values[rank:] ** 2).sum(), expected, total) < 1e-6
    assert torch.equal(small.up.bias, case.layer.mlp.up.bias[selected])


@pytest.mark.parametrize("position", ["none", "rotary"])
def test_cr_keeps_the_columns_with_the_largest_root_norms(position: str) -> None:
    case = toy(4, 2, position, True, True)
    a = case.layer.attention
    turn = rotated if position == "rotary" else lambda states: states
    q, k = (turn(apply(p, case.x)).unflatten(-1, (-1, HEAD)) for p in (a.q, a.k))
    small = modegpt.qk_cr(a, case.moments).truncate(case.layer, 4).attention
    for g in range(a.n_kv):
        gram_k = roots(k[:, g].T @ k[:, g] / len(k))[0]
        squares = 0
        for i in range(g * a.group, (g + 1) * a.group):
            gram_q = roots(q[:, i].T @ q[:, i] / len(q))[0]
            squares = squares + (gram_q**2).sum(0) * (gram_k**2).sum(0)
        score = squares.sqrt()
        if position == "rotary":
            pairs = (score[: HEAD // 2] + score[HEAD // 2 :]).topk(2).indices.sort().values
            columns = torch.cat((pairs, pairs + HEAD // 2))
        else:
            columns = score.topk(4).indices.sort().values
        assert torch.equal(heads(small.k.weight, a.n_kv)[g], heads(a.k.weight, a.n_kv)[g][columns])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_vo_for_mha_equals_the_two_stage_svd(bias: bool, rank: int) -> None:
    """Compute `svd(C^{1/2} W_v)`, then `svd(S V^T W_o)`, with the bias as the weight of a constant
    input.
    """
    case = toy(3, 3, "none", bias, False)
    a = case.layer.attention
    small = modegpt.vo_svd(a, case.moments).truncate(case.layer, rank)
    x = torch.cat((case.x, torch.ones(len(case.x), 1, dtype=case.x.dtype)), 1)
    root, inverse = roots(x.T @ x / len(x))
    for i in range(3):
        extra = torch.zeros(HEAD, 1) if a.v.bias is None else heads(a.v.bias, 3)[i].unsqueeze(1)
        wv = torch.cat((heads(a.v.weight, 3)[i], extra), 1).T  # [d + 1, d_h]
        wo = output_heads(a.o.weight, 3)[i].T  # [d_h, d]
        u, s, vt = torch.linalg.svd(root @ wv, full_matrices=False)
        u2, s2, vt2 = torch.linalg.svd(s.diag() @ vt @ wo, full_matrices=False)
        literal = inverse @ u @ u2[:, :rank] @ s2[:rank].diag() @ vt2[:rank]
        b = small.attention
        v = apply(b.v, case.x).unflatten(-1, (3, rank))[:, i]
        ours = v @ output_heads(b.o.weight, 3)[i].T
        assert torch.allclose(ours, x @ literal, atol=1e-8)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_vo_for_gqa_projects_on_principal_value_directions(rank: int) -> None:
    case = toy(4, 2, "rotary", True, True)
    a = case.layer.attention
    factor = modegpt.vo_group(a, case.moments)
    v = apply(a.v, case.x).unflatten(-1, (a.n_kv, HEAD))
    loss = 0
    for i in range(a.n_q):
        states = v[:, i // a.group]
        _, _, vt = torch.linalg.svd(states, full_matrices=False)
        wo = output_heads(a.o.weight, a.n_q)[i]
        projected = states @ vt[:rank].T @ vt[:rank] @ wo.T
        ours = states @ factor.v_maps[i // a.group, :rank].T @ factor.out[i][:, :rank].T
        assert torch.allclose(ours, projected, atol=1e-9)
        loss += ((states @ wo.T - projected) ** 2).sum(1).mean()
    assert relative((factor.values[rank:] ** 2).sum(), loss) < 1e-9
