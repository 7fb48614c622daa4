"""Small Gemma 4 E2B and Gemma 3n, with embeddings per layer and shared keys and values.

Some layers reuse keys and values of earlier layers, with wider MLPs; Gemma 3n has several residual
streams.
"""

import json
from dataclasses import replace

import pytest
import torch
from tiny_models import CONFIGS, copy_tokenizer, noisy, structures_of

import lrcore
from lrcore.compression.evidence.divergence import DensePredictions
from lrcore.evaluation.local_errors import local_errors
from lrcore.layers.layer import Linear
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.partial import starting_at
from lrcore.models.stream import LayerStream
from lrcore.system.errors import InputError

pytestmark = pytest.mark.one_in(2)

ALL = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 3,
}
EMBEDDINGS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300}
WIDE = {"attention_k_eq_v": False, "use_double_wide_mlp": True}
FIELDS = {
    "gemma4_text": EMBEDDINGS | WIDE,
    "gemma4_unified_text": WIDE,
    "gemma3n_text": EMBEDDINGS
    | {
        "intermediate_size": [48] * 3 + [96] * 3,
        "activation_sparsity_pattern": [0.5] + [0.0] * 5,
    },
}
TOKENS = torch.randint(3, 300, (11, 24), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module", params=FIELDS)
def folder(tiny_llama, tmp_path_factory, request):
    path = tmp_path_factory.mktemp("shared") / request.param
    noisy(request.param, CONFIGS[request.param] | ALL | FIELDS[request.param]).save_pretrained(path)
    copy_tokenizer(tiny_llama, path)
    return path


@pytest.fixture
def model(folder):
    return lrcore.load(str(folder))


def recipe_for(folder, story_file, **fields):
    return lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=16, **fields)


def changed(layer, name):
    """Return the layer with different weights in a projection of its attention."""
    shape = layer.attention.projections[name].weight.shape
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return replace(layer, attention=layer.attention.with_projections({name: Linear(rows)}))


def test_layer_with_shared_keys_has_two_matrices_and_no_cache(model):
    layers = [read_layer(model.network, index) for index in range(6)]
    assert [list(decoder_layer.attention.projections) for decoder_layer in layers] == [
        list("qkvo")
    ] * 3 + [["q", "o"]] * 3
    assert [decoder_layer.mlp.up.weight.shape[0] for decoder_layer in layers] == [48] * 3 + [96] * 3
    cache = model.network(TOKENS, use_cache=True).past_key_values
    for decoder_layer, layer_cache in zip(layers[:3], cache.layers[:3], strict=True):
        cached = layer_cache.keys[0, :, 0].numel() + layer_cache.values[0, :, 0].numel()
        assert decoder_layer.attention.kv_values == cached
    assert all(decoder_layer.attention.kv_values == 0 for decoder_layer in layers[3:])
    assert all(layer_cache.keys is None for layer_cache in cache.layers[3:])


def logits_of(network, stream):
    """Compute logits from the last hidden states by norm and head."""
    batches = zip(stream.hidden, TOKENS.split(stream.batch), strict=True)
    made = []
    for states, tokens in batches:
        with starting_at(network, 6, states):
            made.append(network(tokens, use_cache=False).logits)
    return torch.cat(made)


@torch.inference_mode()
def test_streamed_states_equal_those_of_the_network(model):
    stream = LayerStream(clone(model.network), TOKENS, 4)  # three batches, the last is smaller
    for index in range(6):
        stream.run(index)
    assert torch.allclose(logits_of(model.network, stream), model.network(TOKENS).logits, atol=1e-5)


@torch.inference_mode()
def test_layer_replaced_during_streaming_passes_on_its_new_keys(model):
    """A sequential calibration replaces layers in this way."""
    network = clone(model.network)
    stream = LayerStream(network, TOKENS, 4)
    for index in range(6):
        stream.run(index, advance=False)
        if index == 1:
            write_layer(network, changed(read_layer(network, index), "k"))
        stream.run(index)
    result = network(TOKENS).logits
    assert torch.allclose(logits_of(network, stream), result, atol=1e-5)
    assert not torch.allclose(result, model.network(TOKENS).logits, atol=1e-2)


@pytest.mark.parametrize("index", range(6))
@torch.inference_mode()
def test_probe_of_a_layer_is_the_divergence_of_the_network(model, index):
    """Later layers read keys and values of earlier layers, which do not run."""
    predictions, network = DensePredictions(model.network, TOKENS), clone(model.network)
    stream = LayerStream(clone(model.network), TOKENS)
    for before in range(index):
        stream.run(before)
    write_layer(network, changed(read_layer(network, index), "q"))
    result = predictions.divergences(network, index, stream.hidden, shared=stream.shared)
    dense, small = (net(TOKENS).logits[:, :-1].log_softmax(-1) for net in (model.network, network))
    expected = (dense.exp() * (dense - small)).sum(-1).mean(-1)
    assert expected.min() > 1e-3
    assert torch.allclose(result.float(), expected, rtol=1e-4)


@pytest.mark.parametrize("method", structures_of("gemma4_text"))
def test_every_structure_is_saved_and_exported(method, model, story_file, tmp_path):
    small = lrcore.compress(model, recipe_for(model.name, story_file, method=method, ratio=0.3))
    for write in (lrcore.save, lrcore.export):
        back = lrcore.load(write(small, tmp_path / write.__name__))
        with torch.inference_mode():
            assert torch.equal(back.network(TOKENS).logits, small.network(TOKENS).logits)
    after, before = small.account.model, small.account.dense
    assert after.decoder_parameters < 0.72 * before.decoder_parameters
    assert after.kv_bytes_per_token == before.kv_bytes_per_token


def test_compressed_model_generates_the_same_with_a_cache(model, story_file):
    small = lrcore.compress(model, recipe_for(model.name, story_file, method="fused", ratio=0.4))
    network, prompt = small.network, TOKENS[:2, :9]
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with_cache = network.generate(prompt, **settings)
    assert torch.equal(with_cache, network.generate(prompt, use_cache=False, **settings))


def test_policies_with_evidence_are_supported(model, story_file):
    for policy in ("probed", "mix", "fisher"):
        recipe = recipe_for(model.name, story_file, method="fused", ratio=0.3, policy=policy)
        assert lrcore.compress(model, recipe).ranks


def test_offloaded_layers_give_the_same_model(folder, model, story_file, tmp_path):
    recipe = recipe_for(folder, story_file, method="modegpt", ratio=0.3)
    compressed_model = lrcore.compress(model, recipe)
    parts = lrcore.compress(lrcore.load(str(folder), offload=True), recipe)
    back = lrcore.load(lrcore.save(parts, tmp_path / "parts"))
    with torch.inference_mode():
        assert torch.equal(back.network(TOKENS).logits, compressed_model.network(TOKENS).logits)


def test_local_errors_are_below_one(model, story_file):
    recipe = recipe_for(model.name, story_file, method="svd_llm", ratio=0.5)
    small = lrcore.compress(model, recipe)
    errors = local_errors(model, small, str(story_file), samples=2, seq_len=16)
    assert all(0 < decoder_layer["attention"] < 1 for decoder_layer in errors.errors)


@pytest.mark.parametrize("shared", [5, 6, 7])
def test_shared_keys_without_an_earlier_layer_raise(shared, folder, tmp_path):
    config = json.loads((folder / "config.json").read_text()) | {"num_kv_shared_layers": shared}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"num_kv_shared_layers is {shared}.*of the type"):
        lrcore.load(str(tmp_path))


def test_shared_keys_without_embeddings_per_layer_raise(folder, tmp_path):
    if folder.name == "gemma4_unified_text":
        pytest.skip("a family without embeddings per layer")
    config = json.loads((folder / "config.json").read_text()) | {"hidden_size_per_layer_input": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="hidden_size_per_layer_input 0, which transformers does"):
        lrcore.load(str(tmp_path))


def test_dropping_layers_raises(model, story_file):
    with pytest.raises(InputError, match=r"cannot be dropped: they have separate embeddings"):
        lrcore.prune_layers(model, recipe_for(model.name, story_file), layers=1)


def test_stock_export_raises_with_the_reason(model, story_file, tmp_path):
    recipe = recipe_for(model.name, story_file, method="modegpt", target="transformers-stock")
    with pytest.raises(InputError, match=r"differ in size .mlp of layer 3|differs by layer"):
        lrcore.compress(model, recipe)
