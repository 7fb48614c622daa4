"""Attention-weighted values, collected only for options that need them."""

import copy

import pytest
import torch
from tiny_models import tiny
from transformers.pytorch_utils import Conv1D

import lrcore
from lrcore.compression.calibration.calibrate import all_needs
from lrcore.methods import METHODS
from lrcore.models import weighted_values
from lrcore.models.architectures import ARCHITECTURES, architecture_of, decoder_layers
from lrcore.models.layers import read_layer
from lrcore.models.load import load_model
from lrcore.models.native import head_sizes, rows_of
from lrcore.models.stream import LayerStream
from lrcore.system.errors import InputError

TOKENS = torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(5))
NEEDS = METHODS["latentllm"].extra_needs["vo", "attention"]
LATENT = [name for name, row in ARCHITECTURES.items() if row.native_attention or row.mixer]
WITH_VALUES = [name for name in ARCHITECTURES if name not in LATENT]


@pytest.mark.parametrize("family", WITH_VALUES)
def test_weighted_values_of_each_heads_kv_head_are_its_outputs(family):
    network = tiny(family)
    stream = LayerStream(network, TOKENS, batch=2)
    for index in range(len(decoder_layers(network))):
        a = read_layer(network, index).attention
        moments = stream.run(index, NEEDS | {("attn_out", "second"), ("attn_out", "mean")})
        kv_heads = torch.arange(a.n_q) // a.group
        positions = (
            torch.arange(a.n_q).unsqueeze(1),
            kv_heads.unsqueeze(1),
            torch.arange(a.head_size),
        )
        mean = moments.mean("weighted_values").view(a.n_q, a.n_kv, a.head_size)[positions].flatten()
        second = (
            moments.second("weighted_values")
            .view(*2 * (a.n_q, a.n_kv, a.head_size))[positions]
            .flatten(0, 1)
            .flatten(1)
        )
        second = second.view(-1, a.n_q, a.n_kv, a.head_size)[:, *positions].flatten(1)
        assert torch.allclose(mean, moments.mean("attn_out"), atol=1e-5)
        assert torch.allclose(second, moments.second("attn_out"), atol=1e-5)


@pytest.mark.parametrize("family", WITH_VALUES)
def test_equal_values_of_all_heads_give_equal_weighted_values(family):
    """Only values are equalized; changed keys or queries would change the attention weights."""
    network = copy.deepcopy(tiny(family))
    row = architecture_of(network)
    for index, layer in enumerate(decoder_layers(network)):
        a, module = read_layer(network, index).attention, layer.get_submodule(row.paths()["v"])
        rows = rows_of(row, head_sizes(network, layer.get_submodule(row.attention)), "v").view(
            a.n_kv, -1
        )
        weight = module.weight.data.T if isinstance(module, Conv1D) else module.weight.data
        for stored in (weight, None if module.bias is None else module.bias.data):
            if stored is not None:
                stored[rows] = stored[rows[:1]]
        stream = LayerStream(network, TOKENS)
        for before in range(index):
            stream.run(before)
        result = weighted_values.weighted_values(
            network, decoder_layers(network)[index], stream.hidden[0], *stream.call(index, 0)
        )
        result = result.unflatten(-1, (a.n_q, a.n_kv, a.head_size))
        assert torch.allclose(result, result[..., :1, :].expand_as(result), atol=1e-5)
        assert float(result.std()) > 0


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_opt"])
def test_weighted_values_equal_attention_weights_times_values(folder, request):
    network = load_model(str(request.getfixturevalue(folder))).network
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = network(TOKENS, output_attentions=True).attentions[0]  # [b, n_q, t, t]
    stream = LayerStream(network, TOKENS)
    layer = decoder_layers(network)[0]
    result = weighted_values.weighted_values(network, layer, stream.hidden[0], *stream.call(0, 0))
    seen = []
    hook = layer.self_attn.v_proj.register_forward_hook(lambda _m, _i, out: seen.append(out))
    stream.run(0)
    hook.remove()
    expected = torch.einsum("bqtu,buk->btqk", weights, seen[0]).flatten(2)
    assert torch.allclose(result, expected, atol=1e-6)


def test_weighted_values_are_collected_once_and_only_if_read(tiny_llama, monkeypatch, tmp_path):
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    assert not NEEDS & all_needs()
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(
        model=str(tiny_llama), method="latentllm", ratio=0.3, samples=4, seq_len=32
    )
    calibration = lrcore.calibrate(model, recipe)
    plain = lrcore.factorize(model, calibration, "latentllm")
    assert len(list((tmp_path / "moments").iterdir())) == 1
    stages: list[str] = []
    options = {"vo": "attention"}
    for expected in (True, False):
        stages.clear()
        factors = lrcore.factorize(
            model,
            calibration,
            "latentllm",
            lambda stage, done, _total: done and stages.append(stage),
            options,
        )
        assert (stages.count("calibrate") > 1) == expected
    assert len(list((tmp_path / "moments").iterdir())) == 2
    assert factors.calibration is calibration is plain.calibration
    for mode in ("independent", "sequential"):
        small = lrcore.compress(
            model, recipe.with_(options=options, calibration_mode=mode), factors
        )
        assert torch.isfinite(small.network(TOKENS).logits).all()


def test_layer_that_is_too_wide_raises(tiny_llama, monkeypatch):
    monkeypatch.setattr(weighted_values, "WIDEST", 10)
    stream = LayerStream(load_model(str(tiny_llama)).network, TOKENS)
    with pytest.raises(InputError, match="vo=joint"):
        stream.run(0, NEEDS)


def test_weighted_values_support_narrow_heads_and_raise_for_cached_latents(tiny_llama):
    recipe = lrcore.Recipe(model=str(tiny_llama), method="a3", ratio=0.4, samples=4, seq_len=32)
    small = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    stream = LayerStream(small.network, torch.arange(3, 35).unsqueeze(0))
    moments = stream.run(0, {*NEEDS, ("attn_out", "mean")})
    a = read_layer(small.network, 0).attention
    assert a.v_size < a.head_size
    values = moments.mean("weighted_values").view(a.n_q, a.n_kv, a.v_size)
    heads = torch.arange(a.n_q)
    assert torch.allclose(values[heads, heads // a.group].flatten(), moments.mean("attn_out"))
    latent = lrcore.compress(small, recipe.with_(method="care", ratio=0.2))
    with pytest.raises(InputError, match="dense model"):
        LayerStream(latent.network, torch.arange(3, 35).unsqueeze(0)).run(0, NEEDS)


@pytest.mark.parametrize("family", LATENT)
def test_families_that_cache_latents_raise(family):
    with pytest.raises(InputError, match="caches latents"):
        LayerStream(tiny(family), TOKENS).run(0, NEEDS)
