"""Layers run in two steps, with the same result as in a single step, in all families."""

import pytest
import torch
from tiny_models import FAMILIES, tiny

from lrcore.compression.solve import refit
from lrcore.models.architectures import architecture_of, decoder_layers
from lrcore.models.stream import LayerStream


@pytest.mark.parametrize("family", FAMILIES)
def test_second_step_reuses_the_input_of_the_output_projection(family):
    network = tiny(family)
    tokens = torch.randint(2, 300, (3, 8), generator=torch.Generator().manual_seed(0))
    stream, second_stream = (LayerStream(network, tokens, batch=2) for _ in range(2))
    for index in range(len(decoder_layers(network))):
        for number in range(2):
            complete = stream.activations(index, number)
            has_output = complete.o_in is not None
            o_in = stream.input_of(index, number, "o") if has_output else None
            half = stream.activations(index, number, o_in)
            if complete.up_in is not None:
                before = stream.input_of(index, number, "up", o_in).view_as(complete.up_in)
                assert torch.allclose(before, complete.up_in, rtol=1e-4, atol=1e-5)
            for name in ("o_in", "o_out", "up_in", "down_in", "out"):
                first, two = getattr(half, name), getattr(complete, name)
                assert (first is None) == (two is None)
                assert first is None or torch.allclose(first, two, rtol=1e-4, atol=1e-5)
            if not architecture_of(network).has_further_updates:
                stream.advance(index, number, half)
        second_stream.run(index)
        if architecture_of(network).has_further_updates:
            stream.run(index)
        for first, two in zip(stream.hidden, second_stream.hidden, strict=True):
            assert torch.allclose(first, two, rtol=1e-4, atol=1e-5)


def test_activations_beyond_the_cache_limit_are_recomputed(monkeypatch):
    network = tiny("llama").double()
    tokens = torch.randint(2, 300, (3, 8), generator=torch.Generator().manual_seed(0))
    dense, small, spare = (LayerStream(network, tokens, batch=1) for _ in range(3))
    refit.refit_layer(network, 0, [refit.Streams(dense, small)])
    monkeypatch.setattr(refit, "MAX_CACHED_BYTES", 5000)
    streams = refit.Streams(LayerStream(network, tokens, batch=1), spare)
    refit.refit_layer(network, 0, [streams])
    assert all(map(torch.allclose, small.hidden, spare.hidden))


@pytest.mark.parametrize(
    ("family", "second"),
    [
        ("llama", "post_attention_layernorm"),
        ("granite", "post_attention_layernorm"),
        ("gemma2", "pre_feedforward_layernorm"),
        ("olmo2", "mlp"),
    ],
)
def test_influence_of_a_component_is_that_of_its_update_of_the_stream(family, second):
    """Granite scales the output of a component, Gemma 2 and OLMo 2 normalize it.

    `second` is the module that reads the stream after attention.
    """
    network, middle = tiny(family), []
    stream = LayerStream(network, torch.randint(2, 300, (3, 8)), batch=3)
    before, layer = stream.hidden[0], decoder_layers(network)[0]
    module = layer.get_submodule(second)
    module.register_forward_pre_hook(lambda _, args: middle.append(args[0]))
    moments = stream.run(0, {("attention", "influence"), ("mlp", "influence")})
    for part, pair in (("attention", (before, middle[0])), ("mlp", (middle[0], stream.hidden[0]))):
        expected = 1 - torch.cosine_similarity(*pair, dim=-1).mean()
        assert moments.values[part, "influence"] == pytest.approx(float(expected), abs=1e-6)
