"""Families whose attention stays their own: Gemma 4, with heads of two sizes and keys that give the
values, and Llama 4, whose router scales what its experts read.
"""

import json

import pytest
import torch
from tiny_models import CONFIGS, copy_tokenizer, family_folder, noisy, tiny

import lrcore
from lrcore.errors import InputError
from lrcore.experts import neurons, routed
from lrcore.models.architectures import decoder_layers
from lrcore.models.layers import read_layer
from lrcore.models.per_layer import sizes_by_layer, values_of
from lrcore.modules.compressed import CompressedExperts

TOKENS = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(5))


def test_heads_have_the_size_of_their_layer():
    network = tiny("gemma4_text")
    sliding, full = (read_layer(network, index).attention for index in (0, 1))
    assert (sliding.head_size, sliding.n_q, sliding.n_kv) == (8, 4, 2)
    assert (full.head_size, full.n_q, full.n_kv) == (16, 4, 1)
    assert list(full.named) == ["q", "k", "o"]  # keys give the values
    cache = network(TOKENS, use_cache=True).past_key_values
    for one, kept in zip((sliding, full), cache.layers, strict=True):
        cached = kept.keys[0, :, 0].numel() + kept.values[0, :, 0].numel()
        assert one.kv_values == cached


def test_fields_of_a_config_are_read_by_layer():
    config = tiny("gemma4_text").config
    assert values_of(config, "head_dim") == [8, 16]
    assert values_of(config, "hidden_size") == [32, 32]
    assert values_of(config, "no_such_field") == []
    assert sizes_by_layer(config) == {1: {"head_dim": 16, "num_key_value_heads": 1}}
    assert sizes_by_layer(tiny("llama").config) is None


def test_layers_that_are_alike_stay_so_in_an_export(tiny_llama, story_file, tmp_path):
    """Without what the config says of layers, all would get heads of 512."""
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


def test_a_gemma_4_that_looks_ahead_is_refused_in_a_sentence(tiny_llama, tmp_path):
    folder = family_folder("gemma4_text", tiny_llama, tmp_path / "gemma")
    config = json.loads((folder / "config.json").read_text())
    config["use_bidirectional_attention"] = "all"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"use_bidirectional_attention .* is not supported"):
        lrcore.load(str(folder))


def inputs_of_experts(network):
    """What the native experts of layer 1 are called with, and what they return."""
    seen = []
    experts = decoder_layers(network)[1].feed_forward.experts
    handle = experts.register_forward_hook(lambda _m, args, out: seen.append((args[0], out)))
    with torch.inference_mode():
        network(TOKENS)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("active", [1, 2])
def test_scaled_inputs_are_routed_as_the_family_routes_them(active):
    network = noisy("llama4_text", CONFIGS["llama4_text"] | {"num_experts_per_tok": active})
    given, made = inputs_of_experts(network)
    mlps = read_layer(network, 1).experts.mlps
    batch = routed(len(mlps), given)
    assert batch.inputs.shape == (TOKENS.numel(), 32)
    assert batch.reached.sum(1).eq(active).all()
    assert torch.equal(batch.weights, batch.reached.float())
    for number, mlp in enumerate(mlps):
        own, weights = batch.of(number)
        out = neurons(mlp, own) @ mlp.down.weight.T
        native = made.view(len(mlps), -1, 32)[number][batch.reached[:, number]]
        assert torch.allclose(out, native, atol=1e-5)
        assert weights.eq(1).all()
        first = batch.reached.int().argmax(1)[batch.reached[:, number]] == number
        assert torch.equal(own[first], batch.inputs[batch.reached[:, number]][first])


def test_compressed_experts_are_called_as_the_native_ones():
    network = tiny("llama4_text")
    given, made = inputs_of_experts(network)
    own = CompressedExperts.of(read_layer(network, 1).experts)
    assert torch.allclose(own(given), made, atol=1e-5)
    for mlp in own:  # a bias is for the tokens of an expert alone
        mlp.down_proj.bias = torch.nn.Parameter(torch.ones(32))
    reached = (given != 0).any(-1, keepdim=True)
    assert torch.allclose(own(given), made + reached, atol=1e-5)
