"""Narrowed attention in PyTorch's fused kernel, for unequal head sizes."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import lrcore

PROMPT = torch.arange(3, 43).view(2, 20)


@pytest.mark.parametrize("component", ["qk", "ov"])
@pytest.mark.parametrize("method", ["a3", "modegpt"])
def test_unequal_sizes_of_queries_and_values_use_the_fused_kernel(
    component, method, tiny_llama, story_file
) -> None:
    recipe = lrcore.Recipe(
        model=str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method=method,
        ratio=0.01,
        component_ratios={component: 0.5},
    )
    small = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    attention = small.network.model.layers[0].self_attn
    assert attention.qk_size != attention.v_size
    with torch.inference_mode():
        with sdpa_kernel(SDPBackend.MATH):
            plain = small.network(PROMPT).logits
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            fused = small.network(PROMPT).logits
    assert torch.allclose(fused, plain, atol=1e-4)
