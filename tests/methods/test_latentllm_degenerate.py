"""LatentLLM on degenerate layers, compared with the pseudo-inverse."""

from dataclasses import replace

import pytest
import torch
from latentllm_reference import GQA, MHA, NAMES, PLAIN, literal_algorithm_1, scores
from toy_layer import apply, moments_of, toy, watched

from lrcore.layers.layer import Linear
from lrcore.layers.linalg import roots
from lrcore.layers.statistics import TAPS, Moments
from lrcore.methods import latentllm
from lrcore.methods.latentllm import joint


def spoiled(kind: tuple, how: str):
    """Return a degenerate toy layer and its moments."""
    case = toy(*kind, tokens=10) if how == "few tokens" else toy(*kind)
    layer, x, a, z = case.layer, case.x, case.a, case.z

    def changed(name, edit):
        old = layer.matrices()[name]
        weight = old.weight.clone()
        edit(weight)
        return layer.with_matrices(**{name: Linear(weight, old.bias)})

    if how == "dead neuron":
        z = z.clone()
        z[:, 3] = 0
    if how == "zero head":
        layer = changed("k", lambda w: w[:8].zero_())
        layer = replace(
            layer,
            attention=replace(layer.attention, v=changed("v", lambda w: w[:8].zero_()).attention.v),
        )
    if how == "duplicated row":
        layer = changed("up", lambda w: w[5].copy_(w[4]))
        layer = replace(
            layer,
            attention=replace(
                layer.attention, q=changed("q", lambda w: w[5].copy_(w[4])).attention.q
            ),
        )
    if how == "constant activation":
        x = x.clone()
        x[:, 2] = 1.5
    weighted = (case.mixtures @ apply(layer.attention.v, x)).transpose(0, 1).flatten(1)
    return replace(case, layer=layer, moments=moments_of(layer, x, a, z, weighted), x=x, a=a, z=z)


@pytest.mark.parametrize(
    "how", ["few tokens", "dead neuron", "zero head", "duplicated row", "constant activation"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention": "local", "junction": "symmetric"},
        {"attention": "split_head", "vo": "joint"},
    ],
)
@pytest.mark.parametrize("kind", [(3, 3, "none", True, False), (4, 2, "rotary", False, True)])
def test_degenerate_layers_equal_the_pseudo_inverse_solution(how, options, kind):
    case = spoiled(kind, how)
    factors = latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(**options))
    inputs = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}
    for name, factor in factors.items():
        assert torch.isfinite(factor.values).all()
        for rank in {1, factor.cost.full // 2, factor.cost.full - 1} - {0}:
            small = factor.truncate(case.layer, rank)
            for projection in small.matrices().values():
                assert torch.isfinite(projection.weight).all()
                assert projection.bias is None or torch.isfinite(projection.bias).all()
            if name not in NAMES or (name in "qkv" and "split_head" in options.values()):
                continue
            x, old = inputs[TAPS[name]], case.layer.matrices()[name]
            centered = x - x.mean(0) if old.bias is not None else x
            best = float((torch.linalg.svdvals(centered @ old.weight.T)[rank:] ** 2).sum())
            gap = apply(old, x) - apply(small.matrices()[name], x)
            assert abs(float((gap**2).sum()) - best) < 1e-6 * float((apply(old, x) ** 2).sum())


@pytest.mark.parametrize(
    "how", ["few tokens", "zero head", "duplicated row", "constant activation"]
)
@pytest.mark.parametrize("kind", [MHA, GQA])
def test_degenerate_heads_equal_algorithm_1(how, kind):
    """The printed algorithm inverts only in its last line, so its result is that of the
    pseudo-inverse.
    """
    case = spoiled(kind, how)
    a = case.layer.attention
    factor = latentllm.factor(case.layer, case.moments)["joint_qk"]
    total = sum(float((scores(case.layer, case.x, i) ** 2).mean()) for i in range(a.n_q))
    for rank in (2, 7, 9):
        ranks = joint.side_ranks(rank, factor.pair.left_side.full, factor.pair.right_side.full)
        _, _, losses = literal_algorithm_1(a, roots(case.moments.second("attn_in"))[0], *ranks)
        small = factor.truncate(case.layer, rank)
        error = sum(
            float(((scores(case.layer, case.x, i) - scores(small, case.x, i)) ** 2).mean())
            for i in range(a.n_q)
        )
        assert abs(error - losses[-1]) < 1e-6 * total


@pytest.mark.parametrize("vo", ["joint", "attention"])
def test_zero_moments_give_finite_weights(vo):
    case = toy(*GQA)
    zero = Moments(
        {need: value * 0 for need, value in case.moments.values.items()}, case.moments.tokens
    )
    small = case.layer
    for factor in latentllm.factor(case.layer, zero, latentllm.LatentLLMOptions(vo=vo)).values():
        small = factor.truncate(small, 3)
    assert all(torch.isfinite(p.weight).all() for p in small.matrices().values())


@pytest.mark.parametrize("rank", [8, 16, 23])
def test_bias_of_a_key_channel_without_weights_stays_small(rank):
    """The map of such a head is singular up to rounding. The part of the bias along the singular
    direction shifts all scores of a query equally.
    """
    case = toy(*PLAIN[0])
    k = case.layer.attention.k
    dead = Linear(k.weight.index_fill(0, torch.tensor([2]), 0.0), k.bias)
    spoiled_case = watched(case.layer.with_matrices(k=dead), case.x)
    factor = latentllm.factor(spoiled_case.layer, spoiled_case.moments)["joint_qk"]
    small = factor.truncate(spoiled_case.layer, rank).attention.k
    assert float(small.bias.abs().max()) < 1e3
