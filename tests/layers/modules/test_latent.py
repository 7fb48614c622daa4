"""The cache of latents: it holds only latents and does not change the logits."""

from dataclasses import replace

import pytest
import torch
from through_caches import check_left_padded, held, in_pieces
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

import lrcore
from lrcore.layers.layer import LowRank
from lrcore.layers.modules.latent import LatentAttention
from lrcore.methods import METHODS, truncate
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.model_size import measure
from lrcore.models.stream import LayerStream

FOLDERS = ["tiny_llama", "tiny_llama_bias", "tiny_opt"]
TOKENS = torch.randint(3, 300, (3, 40), generator=torch.Generator().manual_seed(5))
KINDS = [{"k": 7, "v": 11}, {"k": 7}, {"v": 11}]  # both as latents, or one of them dense
SCALED = [
    {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
]


@torch.inference_mode()
def logits(network, tokens=TOKENS, **kwargs):
    return network(tokens, **kwargs).logits


def with_latents(network, ranks):
    """Return a copy of the network with these ranks in each layer, solved on TOKENS."""
    small, stream, row = clone(network), LayerStream(network, TOKENS), METHODS["care"]
    for index in range(network.config.num_hidden_layers):
        layer = read_layer(small, index)
        write_layer(small, truncate(layer, row.factor(layer, stream.run(index, row.needs)), ranks))
    return small


@pytest.fixture(params=FOLDERS)
def model(request):
    return lrcore.load(str(request.getfixturevalue(request.param)))


@pytest.mark.parametrize("ranks", KINDS)
def test_cache_holds_only_latents(model, ranks) -> None:
    small = with_latents(model.network, ranks)
    cache = DynamicCache(config=small.config)
    logits(small, past_key_values=cache, use_cache=True)
    a = read_layer(model.network, 0).attention
    sizes = [ranks.get(name, a.n_kv * a.head_size) for name in ("k", "v")]
    for layer in cache.layers:
        assert [tuple(part.shape) for part in (layer.keys, layer.values)] == [
            (3, 1, 40, size) for size in sizes
        ]
    assert held(cache) == measure(small).kv_bytes * TOKENS.numel()
    assert (
        measure(small).kv_values
        == len(cache.layers) * sum(sizes)
        < measure(model.network).kv_values
    )


@pytest.mark.parametrize("ranks", KINDS)
def test_logits_do_not_depend_on_the_cache(model, ranks) -> None:
    small = with_latents(model.network, ranks)
    expected = logits(small)
    for parts in ([17, 1, 1, 21], [1] * 40, [40]):
        assert torch.allclose(in_pieces(small, TOKENS, parts), expected, atol=2e-5)


@torch.inference_mode()
def test_values_of_cached_tokens_are_not_expanded(tiny_llama) -> None:
    model = lrcore.load(str(tiny_llama))
    small, seen = with_latents(model.network, {"k": 7, "v": 11}), []
    cache = DynamicCache(config=small.config)
    logits(small, TOKENS[:, :-1], past_key_values=cache, use_cache=True)
    for layer in small.model.layers:
        layer.self_attn.v_proj.up.register_forward_hook(lambda *call: seen.append(call))
    logits(small, TOKENS[:, -1:], past_key_values=cache, use_cache=True)
    assert not seen


class Doubled(torch.nn.Linear):
    """Linear layer with doubled output, as a stand-in for an adapter."""

    def forward(self, x):
        return 2 * super().forward(x)


@torch.inference_mode()
def test_adapter_on_the_up_projection_of_values_acts_on_every_token(tiny_llama) -> None:
    small = with_latents(lrcore.load(str(tiny_llama)).network, {"k": 7, "v": 11})
    for layer in small.model.layers:
        layer.self_attn.v_proj.up.__class__ = Doubled
    cache = DynamicCache(config=small.config)
    logits(small, TOKENS[:, :-1], past_key_values=cache, use_cache=True)
    last = logits(small, TOKENS[:, -1:], past_key_values=cache, use_cache=True)
    torch.testing.assert_close(last, logits(small)[:, -1:], atol=1e-4, rtol=1e-4)


def test_latent_shared_by_keys_and_values_is_stored_and_cached_once(
    model, story_file, tmp_path
) -> None:
    recipe = lrcore.Recipe(
        model.name,
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="care",
        options={"joint": True},
        ratio=0.7,
    )
    small = lrcore.compress(model, recipe)
    summary = small.account.to_dict()
    assert small.size.kv_bytes == summary["kv_bytes_per_token"] <= 0.3 * model.size.kv_bytes
    assert small.size.parameters == summary["parameters"]
    expected, cache = logits(small.network), DynamicCache(config=small.network.config)
    result = in_pieces(small.network, TOKENS, [17, 1, 22], cache)
    assert torch.allclose(result, expected, atol=2e-5)
    assert held(cache) == small.size.kv_bytes * TOKENS.numel()
    back = lrcore.load(str(lrcore.save(small, tmp_path / "small")))
    assert torch.equal(logits(back.network), expected)
    assert back.size == small.size


def test_static_cache_gives_the_same_logits(tiny_llama) -> None:
    small = with_latents(lrcore.load(str(tiny_llama)).network, {"k": 7, "v": 11})
    cache = StaticCache(config=small.config, max_cache_len=48)
    result = in_pieces(small, TOKENS, [30, 1, 9], cache)
    assert torch.allclose(result, logits(small), atol=2e-5)


def test_left_padding_does_not_change_the_logits(model) -> None:
    check_left_padded(with_latents(model.network, {"k": 7, "v": 11}), TOKENS)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_latents_of_full_rank_reproduce_the_dense_logits(model, dtype: str) -> None:
    """Factorize all slots at full rank: `W^b W^a` is W up to rounding."""
    network = lrcore.load(model.name, dtype=dtype).network
    small, stream, row = clone(network), LayerStream(network, TOKENS), METHODS["care"]
    for index in range(network.config.num_hidden_layers):
        layer = read_layer(small, index)
        for factor in row.factor(layer, stream.run(index, row.needs)).values():
            layer = replace(factor, cost=replace(factor.cost, full=factor.cost.full + 1)).truncate(
                layer, factor.cost.full
            )
        write_layer(small, layer)
        assert isinstance(read_layer(small, index).attention.k, LowRank)
    close = {"atol": 1e-9} if dtype == "float64" else {"atol": 0.3}
    assert torch.allclose(logits(small), logits(network), **close)
    assert torch.allclose(in_pieces(small, TOKENS, [30, 1, 9]), logits(network), **close)


@pytest.mark.parametrize("rope", SCALED, ids=lambda rope: rope["rope_type"])
def test_scaled_rotary_positions_equal_those_of_the_network(rope) -> None:
    """Keys are rotated at each step, so frequencies may change with the length of the text."""
    dynamic = rope["rope_type"] == "dynamic"
    layers = 1 if dynamic else 2  # deeper layers depend on the frequencies of a shorter text
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
        initializer_range=0.2,
        rope_parameters=rope,
    )
    network = LlamaForCausalLM(config).double().eval()
    small = clone(network)
    for index in range(layers):
        layer = read_layer(small, index)
        a = layer.attention
        k, v = (
            LowRank(torch.eye(32).double(), p.weight) for p in (a.k, a.v)
        )  # the latent is the input, so the product is exact
        write_layer(small, replace(layer, attention=replace(a, k=k, v=v, latent="kv")))
    expected = logits(network)
    assert torch.allclose(logits(small), expected, atol=1e-6)
    result = in_pieces(small, TOKENS, [20, 1, 19])
    assert torch.allclose(result[:, 21:], expected[:, 21:], atol=1e-6)
    assert dynamic or torch.allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("policy", ["uniform", "waterfill"])
def test_latent_model_reloads_bit_for_bit_and_generates_the_same_text(
    model, policy, story_file, tmp_path
) -> None:
    recipe = lrcore.Recipe(
        model.name,
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="care",
        policy=policy,
        ratio=0.6,
        budget="kv",
    )
    small = lrcore.compress(model, recipe)
    assert any(isinstance(module, LatentAttention) for module in small.network.modules())
    lrcore.save(small, tmp_path / "small")
    back = lrcore.load(str(tmp_path / "small"))
    assert torch.equal(logits(back.network), logits(small.network))
    assert back.size == small.size
    assert (
        back.size.kv_bytes
        == small.account.to_dict()["kv_bytes_per_token"]
        <= 0.4 * model.size.kv_bytes
    )
    text, ids = (
        lrcore.generate(back, "Once upon", max_new_tokens=16),
        back.tokenizer("Once upon").input_ids,
    )
    assert text == lrcore.generate(small, "Once upon", max_new_tokens=16)
    for _ in range(16):  # generate without a cache
        ids.append(int(logits(small.network, torch.tensor([ids]))[0, -1].argmax()))
    assert text == back.tokenizer.decode(
        ids[len(back.tokenizer("Once upon").input_ids) :], skip_special_tokens=True
    )


def test_refit_and_sequential_calibration_work_on_latents(tiny_llama, story_file) -> None:
    recipe = lrcore.Recipe(
        str(tiny_llama),
        data=str(story_file),
        samples=4,
        seq_len=32,
        method="care",
        ratio=0.5,
        budget="kv",
    )
    model = lrcore.load(str(tiny_llama))
    plain, refit, sequential = (
        logits(lrcore.compress(model, recipe.with_(**changes)).network)
        for changes in ({}, {"refit": "on"}, {"calibration_mode": "sequential"})
    )
    assert torch.isfinite(refit).all()
    assert torch.isfinite(sequential).all()
    assert not torch.equal(refit, plain)
    assert not torch.equal(sequential, plain)


def test_written_layer_reads_back_and_can_be_written_again(model) -> None:
    small = with_latents(model.network, {"k": 7, "v": 11})
    layer = read_layer(small, 1)
    assert layer.attention.latent
    before = logits(small)
    write_layer(small, layer)
    assert torch.equal(logits(small), before)
    assert torch.equal(logits(clone(small)), before)
