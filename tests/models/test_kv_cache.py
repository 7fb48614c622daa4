"""The quantized KV cache: rounding, size, and use by models."""

import pytest
import torch

import lrcore
from lrcore.models.kv_cache import (
    CACHE_ARGUMENT,
    GROUP,
    QuantizedLayer,
    forward_with_cache,
    quantized_cache,
    quantized_kv_bytes,
)
from lrcore.system.errors import InputError
from tests.tiny_models import tiny

TOKENS = torch.arange(90).view(1, 90) % 60 + 3


def rounded(row: torch.Tensor, bits: int) -> torch.Tensor:
    """Quantize the numbers of one grid separately."""
    low, high = float(row.min()), float(row.max())
    step = (high - low) / (2**bits - 1)
    codes = [round((float(x) - low) / step) if step else 0 for x in row]
    return torch.tensor([low + step * code for code in codes], dtype=row.dtype)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("size", [20, 50])
def test_keys_are_quantized_by_channel_and_values_by_token(bits: int, size: int) -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 2, 3, 100, size, dtype=torch.float64)
    layer = QuantizedLayer(bits, residual=10)
    for start, end in ((0, 70), (70, 71), (71, 100)):
        k, v = layer.update(keys[..., start:end, :], values[..., start:end, :])
    older = 32  # quantized tokens: of the 71 before the last call, the newest 10 or more stay exact
    assert torch.equal(k[..., older:71, :], keys[..., older:71, :])
    assert torch.equal(k[..., 71:, :], keys[..., 71:, :])
    assert torch.equal(v[..., older:, :], values[..., older:, :])
    assert layer.get_seq_length() == 100
    assert layer.keys.shape[-2] == 100 - 2 * GROUP
    for channel in (0, size - 1):
        expected = rounded(keys[1, 2, :GROUP, channel], bits)
        assert torch.allclose(k[1, 2, :GROUP, channel], expected, atol=1e-12)
    half = -(-size // -(-size // GROUP))  # channels that share a grid
    for token in (0, GROUP - 1):
        expected = rounded(values[1, 2, token, :half], bits)
        assert torch.allclose(v[1, 2, token, :half], expected, atol=1e-12)


def test_bytes_count_codes_grids_and_the_newest_tokens() -> None:
    layer = QuantizedLayer(4, residual=0)
    layer.update(torch.randn(1, 2, 64, 40), torch.randn(1, 2, 64, 40))
    codes = 2 * 2 * 64 * 40 // 2  # keys and values, two heads, half a byte each
    grids = 2 * 4 * (2 * 2 * 40 + 2 * 64 * 2)  # per group and channel; per token and 20 channels
    assert layer.nbytes == codes + grids
    layer.update(torch.randn(1, 2, 1, 40), torch.randn(1, 2, 1, 40))
    assert layer.nbytes == codes + grids + 2 * 2 * 40 * 4


METHODS = [None, "a3", "care", "mha2mla"]


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_opt"])
def models(request, story_file):
    dense = lrcore.load(str(request.getfixturevalue(request.param)))
    recipe = lrcore.Recipe(data=str(story_file), samples=2, seq_len=32, ratio=0.3)
    return {
        name: dense if name is None else lrcore.compress(dense, recipe.with_(method=name))
        for name in METHODS
    }


@pytest.mark.parametrize("method", METHODS)
@torch.inference_mode()
def test_tokens_in_groups_give_the_logits_of_single_tokens(models, method) -> None:
    """Perplexity with the cache equals that of decoding; 8 bits lose almost no accuracy."""
    network = models[method].network

    def logits(chunk: int, bits: int) -> torch.Tensor:
        cache = quantized_cache(bits)
        parts = TOKENS.split(chunk, 1)
        return torch.cat([forward_with_cache(network, part, cache)[0].logits for part in parts], 1)

    exact = network(TOKENS).logits
    single, grouped = logits(1, 2), logits(GROUP, 2)
    assert torch.allclose(single, grouped, atol=1e-4)
    start = 2 * GROUP  # the first token that reads quantized tokens
    assert torch.allclose(grouped[:, :start], exact[:, :start], atol=1e-4)
    errors = [
        (approximation - exact)[:, start:].abs().mean()
        for approximation in (grouped, logits(GROUP, 8))
    ]
    assert errors[0] > 4 * errors[1] > 0


@torch.inference_mode()
def test_tokens_after_those_in_a_cache_continue_their_positions() -> None:
    """Bamba counts the positions of each forward pass from 0 unless they are passed."""
    network = tiny("bamba").eval()
    tokens, cache, logits = TOKENS[:, :20], None, []
    for part in tokens.split([12, 1, 1, 6], 1):
        output, cache = forward_with_cache(network, part, cache)
        logits.append(output.logits)
    assert torch.allclose(torch.cat(logits, 1), network(tokens).logits, atol=1e-4)


def test_generation_uses_the_cache_and_beams_are_reordered(models) -> None:
    network, tokens = models["a3"].network, 60
    plain = network.generate(TOKENS[:, :8], max_new_tokens=tokens, do_sample=False)
    cache = quantized_cache(8)
    through = network.generate(
        TOKENS[:, :8], max_new_tokens=tokens, do_sample=False, **{CACHE_ARGUMENT: cache}
    )
    assert torch.equal(plain[:, : 2 * GROUP], through[:, : 2 * GROUP])
    assert cache.get_seq_length() == through.shape[1] - 1
    layer_cache = QuantizedLayer(4, 0)
    states = torch.randn(2, 1, GROUP + 3, 8)
    layer_cache.update(states, states)
    layer_cache.reorder_cache(torch.tensor([1, 1]))
    k, _ = layer_cache.update(states[:, :, :1], states[:, :, :1])
    assert torch.equal(k[0, :, :-1], k[1, :, :-1])


def test_evaluations_sweeps_and_costs_use_the_cache(models, story_file, tmp_path) -> None:
    model, data = models["care"], str(story_file)
    direct = lrcore.evaluate(model, data, samples=2, seq_len=96)
    few = lrcore.evaluate(model, data, samples=2, seq_len=96, kv_bits=2)
    assert few.protocol["kv_bits"] == 2
    assert few.nll != direct.nll
    eight = lrcore.evaluate(model, data, samples=2, seq_len=96, kv_bits=8)
    assert eight.nll == pytest.approx(direct.nll, rel=1e-3)
    assert 2 * quantized_kv_bytes(model.network, 2) < model.size.kv_bytes
    assert lrcore.measure_cost(model, 96, 2).kv_bytes_per_token < model.size.kv_bytes
    settings = [lrcore.EvaluationSettings(data, 1, 96, kv_bits=bits) for bits in (None, 4)]
    sweep = lrcore.Sweep(
        lrcore.Recipe(data=data, samples=2, seq_len=32, method="a3"), evaluations=settings
    )
    rows = lrcore.run_sweep(models[None], sweep, tmp_path)
    assert [row.measured_on.endswith(", KV 4 bit") for row in rows] == [False, True] * 2
    assert rows[1].kv_bytes_per_token == round(quantized_kv_bytes(models[None].network, 4))
    assert rows[0].kv_bytes_per_token == models[None].size.kv_bytes


def test_unsupported_settings_raise(models, story_file) -> None:
    with pytest.raises(InputError, match="8, 4 or 2"):
        lrcore.evaluate(models[None], str(story_file), samples=1, seq_len=16, kv_bits=3)
    with pytest.raises(InputError, match="residual"):
        quantized_cache(4, residual=-1)
    with pytest.raises(InputError, match="use no cache"):
        lrcore.compare(
            models[None], models["a3"], str(story_file), samples=1, seq_len=16, kv_bits=4
        )
