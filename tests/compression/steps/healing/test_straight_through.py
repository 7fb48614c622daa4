"""Straight-through training of quantized factors (LatentLLM, appendix I.1)."""

import pytest
import torch
from healing_cases import QUICK, TOKENS, logits

import lrcore
from lrcore.compression.steps.healing.straight_through import (
    StraightThrough,
    restore_quantized,
    use_straight_through,
)
from lrcore.layers.forms import Quantized, quantize
from lrcore.layers.modules.projections import StoredLinear
from lrcore.models.layers import clone, read_layer
from lrcore.recipes.history import Healed


@pytest.fixture(scope="module")
def small(tiny_llama, story_file):
    """Return factors of 3 bits: dense, with identity blocks, and block-diagonal."""
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2, method="latentllm"
    )
    return lrcore.compress(
        lrcore.load(str(tiny_llama)), recipe.with_(options={"bits": 3, "chunk": 16})
    )


def test_straight_through_model_starts_equal_and_restores_the_same_codes(small) -> None:
    network = clone(small.network)
    use_straight_through(network)
    through = [m for m in network.modules() if isinstance(m, StraightThrough)]
    kinds = {m.form.inner for m in through}
    assert {"dense", "identity_columns"} <= kinds
    tokens = torch.arange(40).view(2, 20)
    with torch.inference_mode():
        expected = small.network(tokens).logits
        assert torch.allclose(network(tokens).logits, expected, atol=1e-5)
        restore_quantized(network)
        assert torch.allclose(network(tokens).logits, expected, atol=1e-5)
    assert not any(isinstance(m, StraightThrough) for m in network.modules())


def test_forward_pass_rounds_and_gradients_skip_the_rounding() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(6, 8), torch.randn(5, 8)
    stored = StoredLinear(quantize(weight, 2, 8))
    module = StraightThrough(stored)
    with torch.no_grad():
        module.numbers.copy_(weight)  # between the grid points
    module.numbers.requires_grad_(True)
    (module(x) ** 2).sum().backward()
    plain = stored.form.matrix.clone().requires_grad_(True)
    ((x @ plain.T) ** 2).sum().backward()
    assert torch.equal(module.numbers.grad, plain.grad)
    assert torch.equal(module(x), stored(x))
    assert not torch.allclose(module(x), x @ weight.T, atol=1e-2)


def test_healing_lowers_the_loss_with_the_same_bits(small, tmp_path) -> None:
    healed = lrcore.heal(small, **QUICK | {"steps": 30, "lr": 3e-3})
    step = healed.step(Healed)
    assert step.trained_parameters > 0
    assert sum(step.cross_entropy[-5:]) < sum(step.cross_entropy[:5])
    assert healed.size == small.size
    before, after = (read_layer(m.network, 0).matrices()["up"].up for m in (small, healed))
    assert isinstance(after, Quantized)
    assert (after.bits, after.chunk) == (before.bits, before.chunk)
    assert not torch.equal(after.codes, before.codes)
    assert not torch.equal(logits(healed), logits(small))
    back = lrcore.load(str(lrcore.save(healed, tmp_path / "healed")))
    assert torch.equal(logits(back), logits(healed))


@pytest.mark.parametrize("quantizer", ["hqq", "gptq"])
@pytest.mark.parametrize("bits", [8, 3])
def test_models_quantized_after_compression_keep_their_grids(
    small_of, tiny_llama, quantizer, bits
) -> None:
    made = lrcore.quantize(small_of(tiny_llama, "svd"), bits, 16, quantizer=quantizer)
    network = clone(made.network)
    use_straight_through(network, fixed_grids=True)
    with torch.inference_mode():
        assert torch.equal(network(TOKENS).logits, logits(made))
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, StraightThrough):
                module.numbers.mul_(1.5)  # some numbers leave the grids
    restore_quantized(network)
    moved = 0
    for actual, expected in zip(_forms(network), _forms(made.network), strict=True):
        assert torch.equal(actual.low, expected.low)
        assert torch.equal(actual.step, expected.step)
        moved += not torch.equal(actual.codes, expected.codes)
    assert moved


def _forms(network) -> list[Quantized]:
    stored = [module for module in network.modules() if isinstance(module, StoredLinear)]
    return [module.form for module in stored if module.kind == "quantised"]
