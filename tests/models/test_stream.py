"""A layer that is looked at in two steps gives what it gives in one, in every family."""

import pytest
import torch
from tiny_models import FAMILIES, tiny

from lrcore.compression import refit
from lrcore.models.architectures import architecture_of, decoder_layers
from lrcore.models.stream import LayerStream


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_before_the_output_projection_need_not_be_computed_again(family):
    network = tiny(family)
    tokens = torch.randint(2, 300, (3, 8), generator=torch.Generator().manual_seed(0))
    stream, other = (LayerStream(network, tokens, batch=2) for _ in range(2))
    for index in range(len(decoder_layers(network))):
        for number in range(2):
            whole = stream.look(index, number)
            o_in = stream.look_before(index, number, "o")
            half = stream.look(index, number, o_in)
            if whole.up_in is not None:
                before = stream.look_before(index, number, "up", o_in).view_as(whole.up_in)
                assert torch.allclose(before, whole.up_in, rtol=1e-4, atol=1e-5)
            for name in ("o_in", "o_out", "up_in", "down_in", "out"):
                one, two = getattr(half, name), getattr(whole, name)
                assert (one is None) == (two is None)
                assert one is None or torch.allclose(one, two, rtol=1e-4, atol=1e-5)
            if not architecture_of(network).adds_more:
                stream.advance(index, number, half)
        other.run(index)
        if architecture_of(network).adds_more:
            stream.run(index)
        for one, two in zip(stream.hidden, other.hidden, strict=True):
            assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)


def test_activations_beyond_what_is_kept_are_computed_again(monkeypatch):
    network = tiny("llama").double()
    tokens = torch.randint(2, 300, (3, 8), generator=torch.Generator().manual_seed(0))
    dense, small, spare = (LayerStream(network, tokens, batch=1) for _ in range(3))
    refit.refit_layer(network, 0, [refit.Streams(dense, small)])
    monkeypatch.setattr(refit, "KEPT", 5000)
    again = refit.Streams(LayerStream(network, tokens, batch=1), spare)
    refit.refit_layer(network, 0, [again])
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
def test_the_influence_of_a_part_is_that_of_what_it_adds_to_the_stream(family, second):
    """Granite multiplies what a component gives before it is added, Gemma 2 and OLMo 2 norm it.
    second: what reads the stream after the attention.
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
