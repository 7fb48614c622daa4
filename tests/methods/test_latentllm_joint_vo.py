"""LatentLLM: joint VO (eq. 184-197) against the printed `d x d` formulas."""

import pytest
import torch
from latentllm_reference import GQA, MHA
from toy_layer import apply, relative, toy

from lrcore.layers.layer import heads, output_heads
from lrcore.layers.linalg import roots
from lrcore.methods import latentllm
from lrcore.methods.latentllm import joint


@pytest.mark.parametrize("kind", [MHA, GQA])
@pytest.mark.parametrize("rank", [4, 13])
def test_joint_vo_equals_the_printed_alternation(kind, rank):
    """eq. 184-188 on `d x d` matrices, with the loss summed over heads."""
    case = toy(*kind)
    a, root = case.layer.attention, roots(case.moments.second("attn_in"))[0]
    g = [
        wo @ heads(a.v.weight, a.n_kv)[i // a.group] @ root
        for i, wo in enumerate(output_heads(a.o.weight, a.n_q))
    ]
    factor = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(vo="joint"))[
        "joint_vo"
    ]
    left_rank, right_rank = joint.side_ranks(
        rank, factor.pair.left_side.full, factor.pair.right_side.full
    )

    def top(m, r):
        return torch.linalg.eigh(m)[1].flip(1)[:, :r]

    bo = top(sum(m @ m.T for m in g), left_rank)
    for _ in range(8):
        av = top(sum(m.T @ bo @ bo.T @ m for m in g), right_rank)
        bo = top(sum(m @ av @ av.T @ m.T for m in g), left_rank)
    expected = float(sum(((m - bo @ bo.T @ m @ av @ av.T) ** 2).sum() for m in g))
    b = factor.truncate(case.layer, rank).attention
    small = [
        wo @ heads(b.v.weight, a.n_kv)[i // a.group] @ root
        for i, wo in enumerate(output_heads(b.o.weight, a.n_q))
    ]
    assert (
        relative(float(sum(((m - s) ** 2).sum() for m, s in zip(g, small, strict=True))), expected)
        < 1e-6
    )


@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "rotary", True, True)])
def test_joint_vo_keeps_the_mean_of_the_output(kind):
    """eq. 193: with attention weights that sum to 1, the output error has mean zero if each head
    sees the mean token.
    """
    case = toy(*kind)
    small = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(vo="joint"))[
        "joint_vo"
    ].truncate(case.layer, 5)
    mean = case.moments.mean("attn_in").unsqueeze(0)

    def out(layer):
        a = layer.attention
        return apply(
            a.o,
            apply(a.v, mean).unflatten(1, (a.n_kv, -1)).repeat_interleave(a.group, 1).flatten(1),
        )

    assert small.attention.v.bias is None
    assert torch.allclose(out(small), out(case.layer), atol=1e-9)
