"""Families with native attention: Gemma 4 and Llama 4.

Gemma 4 has two head sizes and values equal to keys; in Llama 4 the router scales the inputs of its
experts.
"""

import json

import pytest
import torch
from tiny_models import CONFIGS, copy_tokenizer, family_folder, noisy, tiny

import lrcore
from lrcore.layers.experts import mlp_hidden_states, route_tokens
from lrcore.layers.modules.compressed import CompressedExperts
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import read_layer
from lrcore.models.per_layer import layer_values, sizes_by_layer
from lrcore.system.errors import InputError

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))


def test_heads_have_the_size_of_their_layer():
    network = tiny("gemma4_text")
    sliding, full = (read_layer(network, index).attention for index in (0, 1))
    assert (sliding.head_size, sliding.n_q, sliding.n_kv) == (8, 4, 2)
    assert (full.head_size, full.n_q, full.n_kv) == (16, 4, 1)
    assert list(full.projections) == ["q", "k", "o"]  # values equal keys
    cache = network(TOKENS, use_cache=True).past_key_values
    for layer, layer_cache in zip((sliding, full), cache.layers, strict=True):
        cached = layer_cache.keys[0, :, 0].numel() + layer_cache.values[0, :, 0].numel()
        assert layer.kv_values == cached


def test_config_fields_are_read_by_layer():
    config = tiny("gemma4_text").config
    assert layer_values(config, "head_dim") == [8, 16]
    assert layer_values(config, "hidden_size") == [32, 32]
    assert layer_values(config, "no_such_field") == []
    assert sizes_by_layer(config) == {1: {"head_dim": 16, "num_key_value_heads": 1}}
    assert sizes_by_layer(tiny("llama").config) is None


def test_export_keeps_equal_layer_sizes(tiny_llama, story_file, tmp_path):
    """Without the sizes by layer in the config, all layers would have heads of 512."""
    fields = CONFIGS["gemma4_text"] | {"global_head_dim": 8, "num_global_key_value_heads": 2}
    noisy("gemma4_text", fields).save_pretrained(tmp_path / "dense")
    copy_tokenizer(tiny_llama, tmp_path / "dense")
    dense = lrcore.load(str(tmp_path / "dense"))
    recipe = lrcore.Recipe(dense.name, data=str(story_file), samples=2, seq_len=16, method="a3")
    small = lrcore.compress(dense, recipe)
    for write in (lrcore.save, lrcore.export):
        back = lrcore.load(write(small, tmp_path / write.__name__))
        with torch.inference_mode():
            assert torch.equal(back.network(TOKENS).logits, small.network(TOKENS).logits)


def test_bidirectional_gemma_4_raises(tiny_llama, tmp_path):
    folder = family_folder("gemma4_text", tiny_llama, tmp_path / "gemma")
    config = json.loads((folder / "config.json").read_text())
    config["use_bidirectional_attention"] = "all"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"use_bidirectional_attention .* is not supported"):
        lrcore.load(str(folder))


def inputs_of_experts(network):
    """Return inputs and outputs of the native experts of layer 1."""
    seen = []
    experts = decoder_layers(network)[1].feed_forward.experts
    handle = experts.register_forward_hook(lambda _m, args, out: seen.append((args[0], out)))
    with torch.inference_mode():
        network(TOKENS)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("active", [1, 2])
def test_scaled_inputs_are_routed_like_the_family(active):
    network = noisy("llama4_text", CONFIGS["llama4_text"] | {"num_experts_per_tok": active})
    received, made = inputs_of_experts(network)
    mlps = read_layer(network, 1).experts.mlps
    batch = route_tokens(read_layer(network, 1).experts, received)
    assert batch.inputs.shape == (TOKENS.numel(), 32)
    assert batch.reached.sum(1).eq(active).all()
    assert torch.equal(batch.weights, batch.reached.float())
    for number, mlp in enumerate(mlps):
        compressed_experts, weights = batch.for_expert(number)
        out = mlp_hidden_states(mlp, compressed_experts) @ mlp.down.weight.T
        native = made.view(len(mlps), -1, 32)[number][batch.reached[:, number]]
        assert torch.allclose(out, native, atol=1e-5)
        assert weights.eq(1).all()
        first = batch.reached.int().argmax(1)[batch.reached[:, number]] == number
        assert torch.equal(compressed_experts[first], batch.inputs[batch.reached[:, number]][first])


def test_compressed_experts_equal_native_experts():
    network = tiny("llama4_text")
    received, made = inputs_of_experts(network)
    compressed_experts = CompressedExperts.of(read_layer(network, 1).experts)
    assert torch.allclose(compressed_experts(received), made, atol=1e-5)
    for mlp in compressed_experts:  # a bias applies only to the tokens of its expert
        mlp.down_proj.bias = torch.nn.Parameter(torch.ones(32))
    reached = (received != 0).any(-1, keepdim=True)
    assert torch.allclose(compressed_experts(received), made + reached, atol=1e-5)
