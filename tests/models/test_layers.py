"""Reading and writing of layers: bit-identical if unchanged, smaller if compressed."""

import json
import pickle

import pytest
import torch
from plans import one_form
from through_caches import in_pieces
from tiny_models import STRUCTURES
from transformers import DynamicCache

from lrcore.layers.modules.install import install
from lrcore.methods import METHODS, truncate
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.load import load_model
from lrcore.models.model_size import measure
from lrcore.models.stream import LayerStream
from lrcore.models.structure import structure

FOLDERS = ["tiny_llama", "tiny_llama_bias", "tiny_opt"]
TOKENS = torch.randint(3, 300, (3, 40), generator=torch.Generator().manual_seed(5))


@pytest.fixture(params=FOLDERS)
def model(request):
    return load_model(str(request.getfixturevalue(request.param)))


def logits(network, tokens=TOKENS, **kwargs):
    with torch.inference_mode():
        return network(tokens, **kwargs).logits


def compressed(model, method: str = "a3", keep: float = 0.6):
    """Return a copy of the network with a share of the ranks of each slot, solved on TOKENS."""
    network, row = clone(model.network), METHODS[method]
    stream = LayerStream(model.network, TOKENS)
    for index in range(model.network.config.num_hidden_layers):
        layer = read_layer(network, index)
        factors = row.factor(layer, stream.run(index, row.needs or {("block", "influence")}))
        offered = {
            name: [rank for rank in f.cost.ranks() if rank <= f.cost.cap]
            for name, f in factors.items()
            if name in one_form(method, factors, index)
        }
        ranks = {
            name: ranks_offered[int(keep * len(ranks_offered))]
            for name, ranks_offered in offered.items()
        }
        write_layer(network, truncate(layer, factors, ranks))
    return network


def test_reading_and_writing_layers_keeps_the_logits_bit_for_bit(model) -> None:
    network = clone(model.network)
    for index in range(network.config.num_hidden_layers):
        write_layer(network, read_layer(network, index))
    assert torch.equal(logits(network), logits(model.network))


def test_clone_shares_tensors_and_is_independent_of_the_original(model) -> None:
    before = logits(model.network)
    small = compressed(model)
    assert torch.equal(logits(model.network), before)
    assert not torch.equal(logits(small), before)
    assert (
        small.get_input_embeddings().weight.data_ptr()
        == model.network.get_input_embeddings().weight.data_ptr()
    )


@pytest.mark.parametrize("method", STRUCTURES)
def test_a_compressed_network_can_be_pickled(model, method: str) -> None:
    small = compressed(model, method)
    assert torch.equal(logits(pickle.loads(pickle.dumps(small))), logits(small))


@pytest.mark.parametrize("method", STRUCTURES)
def test_parameters_and_cache_of_compressed_models_are_smaller(model, method: str) -> None:
    small = compressed(model, method)
    assert measure(small).decoder_linear < measure(model.network).decoder_linear
    assert measure(small).parameters == sum(p.numel() for p in small.parameters())
    for network in (model.network, small):
        cache = DynamicCache(config=network.config)
        with torch.inference_mode():
            network(TOKENS, past_key_values=cache, use_cache=True)
        held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
        assert held == measure(network).kv_values * TOKENS.numel()
    narrows = METHODS[method].shrinks_kv
    assert (measure(small).kv_values < measure(model.network).kv_values) == narrows


@pytest.mark.parametrize("method", STRUCTURES)
def test_cached_and_uncached_logits_agree(model, method: str) -> None:
    small = compressed(model, method)
    full_logits = logits(small)
    sizes = [17, 1, 1, TOKENS.shape[1] - 19]
    assert torch.allclose(in_pieces(small, TOKENS, sizes), full_logits, atol=2e-5)


@pytest.mark.parametrize("method", ["a3", "svd_llm"])
def test_left_padding_does_not_change_the_logits(model, method: str) -> None:
    small = compressed(model, method)
    unpadded = logits(small, TOKENS[:1, :20])
    padded = torch.cat((torch.full((1, 6), 2), TOKENS[:1, :20]), 1)
    mask = torch.cat((torch.zeros(1, 6, dtype=torch.long), torch.ones(1, 20, dtype=torch.long)), 1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    batch_logits = logits(
        small,
        torch.cat((padded, TOKENS[1:2, :26])),
        attention_mask=torch.cat((mask, torch.ones_like(mask))),
        position_ids=torch.cat((positions, torch.arange(26).unsqueeze(0))),
    )
    assert torch.allclose(batch_logits[:1, 6:], unpadded, atol=2e-5)


def test_generation_uses_the_small_cache(model) -> None:
    small = compressed(model)
    out = small.generate(
        TOKENS[:, :8],
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=2,
        attention_mask=torch.ones(3, 8),
    )
    plain = TOKENS[:, :8]
    for _ in range(out.shape[1] - 8):
        plain = torch.cat((plain, logits(small, plain)[:, -1:].argmax(-1)), 1)
    assert torch.equal(out[:, 8], plain[:, 8])


@pytest.mark.parametrize("method", STRUCTURES)
def test_structure_in_json_rebuilds_the_modules(model, method: str) -> None:
    small = compressed(model, method)
    description = json.loads(json.dumps(structure(small)))
    rebuilt = clone(model.network)
    install(rebuilt, description)
    rebuilt.load_state_dict(small.state_dict(), strict=True)
    assert torch.equal(logits(rebuilt), logits(small))


def test_written_layer_reads_back_unchanged(model) -> None:
    small = compressed(model)
    layer = read_layer(small, 1)
    write_layer(small, layer)
    reread = read_layer(small, 1)
    assert reread.attention.qk_size == layer.attention.qk_size < layer.attention.head_size
    for name, projection in layer.matrices().items():
        assert torch.equal(reread.matrices()[name].weight, projection.weight)
