"""The decoupled rotary channel of latent models (CARE, section 3.5)."""

import json
from dataclasses import replace

import pytest
import torch
from elsewhere import elsewhere
from through_caches import check_left_padded, held, in_pieces
from tiny_models import tiny
from transformers import DynamicCache, StaticCache

import lrcore
from lrcore.compression.steps.healing.trainable import add_rotary_channel
from lrcore.evaluation.contributions import contributions
from lrcore.layers.layer import RotaryChannel
from lrcore.layers.modules.latent import LatentAttention
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import measure

TOKENS = torch.randint(3, 300, (3, 40), generator=torch.Generator().manual_seed(5))
FAMILIES = (
    "llama",
    "qwen3",
    "gemma2",
    "phi",
    "smollm3",
    "cohere",
)
# scaled angles; norms; softcap and windows; half a head rotated; layers without rotation;
# interleaved pairs
ELSEWHERE = """
import importlib.util, json, sys
import torch
from transformers import AutoModelForCausalLM
assert importlib.util.find_spec("lrcore") is None
found = []
for folder in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokens = torch.randint(3, 300, (3, 40), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        found.append(model(tokens).logits)
    greedy = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 2}
    kept = model.generate(tokens[:1], **greedy)
    assert torch.equal(kept, model.generate(tokens[:1], use_cache=False, **greedy))
    padded = torch.cat((torch.full((1, 5), 2), tokens[:1, :20]), 1)
    mask = (torch.arange(25) >= 5).long()[None]
    left = model.generate(padded, attention_mask=mask, **greedy)
    alone = model.generate(tokens[:1, :20], **greedy)
    assert torch.equal(left[:, 5:], alone)
torch.save(found, sys.argv[2])
"""


@torch.inference_mode()
def logits(network, tokens=TOKENS, **kwargs):
    return network(tokens, **kwargs).logits


def compressed(folder, data, **changes):
    requested = {"samples": 4, "seq_len": 32, "method": "care", "ratio": 0.6} | changes
    return lrcore.compress(
        lrcore.load(str(folder)), lrcore.Recipe(str(folder), data=str(data), **requested)
    )


def with_channel(model, size=4, trained=True):
    """Return the model with rotary channels; `trained` sets nonzero W_K^R."""
    network = clone(model.network)
    add_rotary_channel(network, size)
    for index in range(len(decoder_layers(network)) if trained else 0):
        layer = read_layer(network, index)
        channel = layer.attention.channel
        if channel is not None:
            k = (
                torch.randn(channel.k.shape, generator=torch.Generator().manual_seed(index)).to(
                    channel.k
                )
                * 0.3
            )
            write_layer(
                network,
                replace(
                    layer, attention=replace(layer.attention, channel=RotaryChannel(channel.q, k))
                ),
            )
    return replace(model, network=network)


@pytest.fixture
def folder_of(tiny_llama, tmp_path):
    def make(family):
        tiny(family).save_pretrained(tmp_path / f"dense-{family}")
        for file in tiny_llama.glob("*token*"):
            (tmp_path / f"dense-{family}" / file.name).write_bytes(file.read_bytes())
        return tmp_path / f"dense-{family}"

    return make


def rotated(states, theta=10000.0):
    """Apply rotary positions in the rotate-half layout by definition. states [t, size]"""
    half = states.shape[-1] // 2
    out = states.clone()
    for t in range(states.shape[0]):
        for j in range(half):
            angle = torch.tensor(t * theta ** (-j / half), dtype=states.dtype)
            a, b = states[t, j], states[t, j + half]
            out[t, j], out[t, j + half] = (
                a * angle.cos() - b * angle.sin(),
                b * angle.cos() + a * angle.sin(),
            )
    return out


@pytest.mark.parametrize("size", [2, 4, 8])
def test_attention_follows_the_paper_except_for_the_scale(
    size, tiny_llama_bias, story_file
) -> None:
    small = with_channel(compressed(tiny_llama_bias, story_file, dtype="float64"), size)
    small.network.double()
    a = read_layer(small.network, 1).attention
    module = next(
        m for m in decoder_layers(small.network)[1].modules() if isinstance(m, LatentAttention)
    )
    x = torch.randn(1, 9, 32, dtype=torch.float64)
    with torch.inference_mode():
        angles = small.network.model.rotary_emb(x, torch.arange(9)[None])
        result = module(x, position_embeddings=angles)[0][0]
    latent = x[0] @ a.k.down.T
    q, k, v = (x[0] @ p.weight.T + p.bias for p in (a.q, a.k, a.v))
    key = rotated(latent @ a.channel.k.T)
    heads = []
    for head in range(a.n_q):
        channel_scores, group = (
            slice(head * 8, head * 8 + 8),
            slice(head // a.group * 8, head // a.group * 8 + 8),
        )
        query = rotated(x[0] @ a.channel.q[head * size : head * size + size].T)
        scores = (rotated(q[:, channel_scores]) @ rotated(k[:, group]).T + query @ key.T) * a.scale
        scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ v[:, group])
    assert torch.allclose(result, torch.cat(heads, -1) @ a.o.weight.T + a.o.bias, atol=1e-9)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_channel_with_zero_keys_changes_no_bit_in_heads_of_16(
    family, folder_of, story_file
) -> None:
    """In heads of 16, products are summed in the same order with and without zeros at the end."""
    small = compressed(folder_of(family), story_file)
    made = with_channel(small, trained=False)
    assert measure(made.network).parameters > measure(small.network).parameters
    assert torch.equal(logits(made.network), logits(small.network))
    assert not torch.equal(logits(with_channel(small).network), logits(small.network))


def test_channel_with_zero_keys_changes_at_most_rounding_in_heads_of_8(
    tiny_llama, story_file
) -> None:
    small = compressed(tiny_llama, story_file)
    assert torch.allclose(
        logits(with_channel(small, trained=False).network), logits(small.network), atol=1e-5
    )


@pytest.mark.parametrize("options", [{}, {"joint": True}])
def test_channel_needs_no_larger_cache_and_all_caches_give_the_same_logits(
    options, tiny_llama_bias, story_file
) -> None:
    small = compressed(tiny_llama_bias, story_file, options=options)
    made = with_channel(small)
    assert made.size.kv_values == small.size.kv_values
    all_logits = logits(made.network)
    for parts in ([17, 1, 1, 21], [1] * 40, [40]):
        cache = DynamicCache(config=made.network.config)
        result = in_pieces(made.network, TOKENS, parts, cache)
        assert torch.allclose(result, all_logits, atol=2e-5)
        assert held(cache) == small.size.kv_bytes * TOKENS.numel()
    cache = StaticCache(config=made.network.config, max_cache_len=48)
    result = in_pieces(made.network, TOKENS, [30, 1, 9], cache)
    assert torch.allclose(result, all_logits, atol=2e-5)


def test_left_padding_does_not_change_the_logits(tiny_llama, story_file) -> None:
    check_left_padded(with_channel(compressed(tiny_llama, story_file)).network, TOKENS)


def test_channel_is_saved_and_exported_bit_for_bit(folder_of, story_file, tmp_path) -> None:
    models = {
        family: with_channel(compressed(folder_of(family), story_file), 4) for family in FAMILIES
    }
    for family, made in models.items():
        back = lrcore.load(str(lrcore.save(made, tmp_path / "saved" / family)))
        assert torch.equal(logits(back.network), logits(made.network))
        assert back.size == made.size
        offloaded = lrcore.load(str(tmp_path / "saved" / family), offload=True)
        assert torch.equal(logits(offloaded.network), logits(made.network))
        half = lrcore.load(str(tmp_path / "saved" / family), dtype="bfloat16")
        assert {p.dtype for p in half.network.parameters()} == {torch.bfloat16}
        lrcore.export(made, tmp_path / "away" / family)
    elsewhere(
        ELSEWHERE,
        json.dumps([str(tmp_path / "away" / family) for family in models]),
        str(tmp_path / "found.pt"),
        cwd=tmp_path,
    )
    for made, result in zip(models.values(), torch.load(tmp_path / "found.pt"), strict=True):
        assert torch.equal(result, logits(made.network))


def test_layers_without_rotary_positions_have_no_channel(folder_of, story_file) -> None:
    made = with_channel(compressed(folder_of("smollm3"), story_file))
    assert [read_layer(made.network, index).attention.channel is None for index in range(2)] == [
        False,
        True,
    ]


def test_parameters_and_flops_of_the_channel_are_counted(tiny_llama, story_file) -> None:
    small = compressed(tiny_llama, story_file)
    made = with_channel(small, 4)
    ranks = [read_layer(small.network, index).attention.k.rank for index in range(3)]
    added_parameters = sum(4 * 4 * 32 + 4 * rank for rank in ranks)
    assert (
        made.size.parameters - small.size.parameters
        == made.size.decoder_linear - small.size.decoder_linear
        == added_parameters
    )
    cost = lrcore.measure_cost(made, 32)
    # the formula leaves out the product of the token with itself
    assert cost.flops_decode == pytest.approx(cost.flops_formula, rel=0.01)
    assert cost.flops_formula > lrcore.measure_cost(small, 32).flops_formula


def test_other_steps_keep_the_channel_or_raise(tiny_llama, story_file) -> None:
    model, small = lrcore.load(str(tiny_llama)), compressed(tiny_llama, story_file)
    made = with_channel(small)
    codes = lrcore.quantize(made, 8, group=16)
    assert torch.equal(
        read_layer(codes.network, 0).attention.channel.k,
        read_layer(made.network, 0).attention.channel.k,
    )
    rows = {
        row["parts"]: row["perplexity"]
        for row in contributions(model, made, str(story_file), samples=4, seq_len=32).rows
    }
    assert rows["all"] == pytest.approx(
        lrcore.evaluate(made, str(story_file), samples=4, seq_len=32).perplexity, rel=1e-5
    )
    recipe = lrcore.Recipe(
        str(tiny_llama), data=str(story_file), samples=4, seq_len=32, method="a3"
    )
    with pytest.raises(lrcore.InputError, match="rotary channel"):
        lrcore.compress(made, recipe)


@pytest.mark.parametrize(
    ("family", "method", "size", "message"),
    [
        ("tiny_opt", "care", 4, "No layer"),
        ("tiny_llama", "svd", 4, "No layer"),
        ("tiny_llama", "care", 10, "at most 8"),
    ],
)
def test_models_without_rotary_latents_and_invalid_sizes_raise(
    family, method, size, message, request, story_file
) -> None:
    small = compressed(request.getfixturevalue(family), story_file, method=method)
    with pytest.raises(lrcore.InputError, match=message):
        add_rotary_channel(small.network, size)


def test_second_channel_raises(tiny_llama, story_file) -> None:
    made = with_channel(compressed(tiny_llama, story_file))
    with pytest.raises(lrcore.InputError, match="already"):
        add_rotary_channel(made.network, 4)
