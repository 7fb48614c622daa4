"""LatentLLM: bias updates, and a shared or split A (eq. 43-54), against brute force."""

import pytest
import torch
from latentllm_reference import GQA
from toy_layer import D, apply, relative, toy

from lrcore.layers.layer import heads
from lrcore.layers.statistics import TAPS
from lrcore.methods import latentllm


@pytest.mark.parametrize("attention", ["local", "split_head", "joint_qkv"])
def test_bias_update_is_the_least_squares_optimum(attention):
    """eq. 43-49: among all rank-r maps with a free bias; brute force by centering the tokens."""
    case = toy(4, 2, "none", True, False)
    small = case.layer
    for factor in latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(attention=attention, mlp="local")
    ).values():
        small = factor.truncate(small, 4)
    inputs = {"attn_in": case.x, "attn_out": case.a, "mlp_in": case.x, "mlp_hidden": case.z}
    for name, projection in small.matrices().items():
        x, old = inputs[TAPS[name]], case.layer.matrices()[name]
        gap = apply(old, x) - apply(projection, x)
        assert gap.mean(0).abs().max() < 1e-9  # eq. 45
        if attention == "local":
            centered = (x - x.mean(0)) @ old.weight.T
            best = float(
                (torch.linalg.svdvals(centered)[4:] ** 2).sum()
            )  # eq. 48: no rank-4 map of centered tokens has a lower error
            assert relative(float((gap**2).sum()), best) < 1e-9


def test_projection_without_bias_has_the_uncentered_optimum_unless_a_bias_is_added():
    case = toy(*GQA)
    updated = (
        latentllm.factor(case.layer, case.moments, latentllm.LatentLLMOptions(attention="local"))[
            "up"
        ]
        .truncate(case.layer, 4)
        .mlp.up
    )
    added = (
        latentllm.factor(
            case.layer, case.moments, latentllm.LatentLLMOptions(attention="local", bias="add")
        )["up"]
        .truncate(case.layer, 4)
        .mlp.up
    )
    dense_out = apply(case.layer.mlp.up, case.x)
    assert updated.bias is None
    assert (
        relative(
            float(((dense_out - apply(updated, case.x)) ** 2).sum()),
            float((torch.linalg.svdvals(dense_out)[4:] ** 2).sum()),
        )
        < 1e-9
    )
    assert float(((dense_out - apply(added, case.x)) ** 2).sum()) < float(
        ((dense_out - apply(updated, case.x)) ** 2).sum()
    )


def test_joint_qkv_is_the_svd_of_the_stacked_weights_with_a_shared_factor():
    """Check eq. 50."""
    case = toy(*GQA)
    small = latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(attention="joint_qkv")
    )["joint_qkv"].truncate(case.layer, 6)
    stack = torch.cat([case.layer.matrices()[name].weight for name in "qkv"])
    out = torch.cat([apply(small.matrices()[name], case.x) for name in "qkv"], 1)
    best = float((torch.linalg.svdvals(case.x @ stack.T)[6:] ** 2).sum())
    assert relative(float(((case.x @ stack.T - out) ** 2).sum()), best) < 1e-9
    assert small.attention.q.down is small.attention.k.down is small.attention.v.down
    saved = case.layer.parameters - small.parameters
    assert saved == stack.numel() - (6 * (D + len(stack)) - 36)  # r (3 d' + d - r), appendix C


def test_split_heads_are_separate_svds():
    """Check eq. 53-54."""
    case = toy(*GQA)
    small = latentllm.factor(
        case.layer, case.moments, latentllm.LatentLLMOptions(attention="split_head")
    )["q"].truncate(case.layer, 3)
    for weight, result in zip(
        heads(case.layer.attention.q.weight, 4), heads(small.attention.q.weight, 4), strict=True
    ):
        best = float((torch.linalg.svdvals(case.x @ weight.T)[3:] ** 2).sum())
        assert relative(float(((case.x @ (weight - result).T) ** 2).sum()), best) < 1e-9


def test_added_biases_give_the_principal_components_of_the_outputs() -> None:
    """Bolaco projects by `Q Q^T W` with bias `(I - Q Q^T) E[y]`, Q the eigenvectors of the
    covariance.
    """
    case = toy(*GQA)
    options = latentllm.LatentLLMOptions(
        attention="local", mlp="local", junction="left", bias="add"
    )
    factors = latentllm.factor(case.layer, case.moments, options)
    inputs = {"o": case.a, "up": case.x, "down": case.z}
    for name, x in inputs.items():
        old, small = (
            layer.matrices()[name] for layer in (case.layer, factors[name].truncate(case.layer, 3))
        )
        y = apply(old, x)
        q = torch.linalg.eigh(torch.cov(y.T, correction=0)).eigenvectors[:, -3:]
        assert torch.allclose(small.weight, q @ q.T @ old.weight, atol=1e-8)
        expected = y.mean(0) + (y - y.mean(0)) @ q @ q.T
        assert torch.allclose(apply(small, x), expected, atol=1e-8)
