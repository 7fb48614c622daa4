"""Covariances of attended keys, compared with a computation per query."""

from dataclasses import replace

import pytest
import torch
from tiny_models import family_folder, tiny
from toy_layer import toy

import lrcore
from lrcore.compression.calibration import calibrate as calibration
from lrcore.layers.statistics import ATTENDED_KEYS, Moments
from lrcore.methods import fused
from lrcore.models.architectures import decoder_layers
from lrcore.models.attended_keys import NAME, covariances, has_attended_keys
from lrcore.models.layers import clone, read_layer
from lrcore.models.stream import LayerStream

TOKENS = torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(5))
WITHOUT_POSITIONS = ("gpt2", "opt")


def covariances_by_query(query, key, mask, scaling) -> torch.Tensor:
    """Return the covariances [kv heads, d_h, d_h], query by query."""
    group, total = len(query) // len(key), torch.zeros(*key.shape[::2], key.shape[2]).double()
    for head, states in enumerate(query.double()):
        keys = key[head // group].double()
        for position, state in enumerate(states):
            score = scaling * (keys @ state) + mask[position]
            p = score.softmax(0).unsqueeze(1)
            centered_keys = keys - (p * keys).sum(0)
            total[head // group] += (p * centered_keys).T @ centered_keys / group
    return total


@pytest.mark.parametrize("mask", ["causal", "boolean", "added"])
def test_covariances_equal_those_by_query(mask: str) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(n, 7, 4, generator=generator) for n in (6, 2))
    key = key + 1000.0  # a large mean must not cause cancellation
    allowed = torch.ones(7, 7, dtype=torch.bool).tril()
    added = torch.zeros(7, 7).masked_fill(~allowed, float("-inf"))
    if mask == "added":
        added = added - 0.3 * torch.arange(7)
    variants = {"causal": None, "boolean": allowed[None], "added": added[None]}[mask]
    # A shift of the keys moves all scores of a query equally.
    expected = covariances_by_query(query, key - 1000.0, added.double(), 0.5)
    assert torch.allclose(covariances(query, key, variants, 0.5), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", WITHOUT_POSITIONS)
def test_collected_covariances_use_the_attention_of_the_network(family: str) -> None:
    network = tiny(family)
    slow = clone(network)
    slow.set_attn_implementation("eager")
    with torch.inference_mode():
        out = slow(TOKENS, output_attentions=True, output_hidden_states=True)
    stream, plain = LayerStream(clone(network), TOKENS, batch=2), LayerStream(network, TOKENS, 2)
    for index, weights in enumerate(out.attentions):
        collected = stream.run(index, {ATTENDED_KEYS, ("attn_in", "mean")})
        a, seen = read_layer(network, index).attention, []
        layer = decoder_layers(network)[index]
        norm = layer.ln_1 if family == "gpt2" else layer.self_attn_layer_norm
        x = norm(out.hidden_states[index])
        keys = (x @ a.k.weight.T + a.k.bias).unflatten(-1, (a.n_kv, -1)).transpose(1, 2).double()
        for p, k in zip(weights.flatten(0, 1).double(), keys.flatten(0, 1), strict=True):
            centered_keys = k - (p @ k).unsqueeze(1)  # [queries, keys, d_h]
            seen.append(torch.einsum("qk,qki,qkj->ij", p, centered_keys, centered_keys))
        expected = torch.stack(seen).unflatten(0, (len(TOKENS), -1)).sum(0) / TOKENS.numel()
        assert torch.allclose(collected.values[ATTENDED_KEYS], expected, rtol=1e-3, atol=1e-6)
        plain.run(index)
    for ours, theirs in zip(stream.hidden, plain.hidden, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert (
        stream.network.config._attn_implementation != NAME
    )  # the previous implementation is restored
    assert network.config._attn_implementation != NAME


def test_maps_minimize_the_error_in_the_metric_of_attended_keys() -> None:
    case = toy(3, 3, "none", True, False)
    a = case.layer.attention
    query = fused.centered_grams(a, case.moments)[0]
    root = torch.randn(3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    metric = root @ root.mT
    seen = Moments({**case.moments.values, ATTENDED_KEYS: metric}, case.moments.tokens)
    with_metric, without_metric = fused.qk_centered(a, seen), fused.qk_centered(a, case.moments)

    def lost(factors, rank: int) -> float:
        maps = (item[:, :rank] for item in (factors.q_maps, factors.k_maps))
        q, k = maps
        error = torch.eye(8, dtype=torch.float64) - q.mT @ k
        return float((query * (error @ metric @ error.mT)).sum())

    for rank in (1, 3, 6):
        tail = float((with_metric.values[rank:] ** 2).sum())
        assert lost(with_metric, rank) == pytest.approx(tail, rel=1e-6)
        assert lost(with_metric, rank) < lost(without_metric, rank)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_families_without_attended_keys_run_no_extra_pass(
    family, tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    """Llama rotates its keys; Bloom does not call the attention function of its config."""
    model = lrcore.load(str(family_folder(family, tiny_llama, tmp_path / "model")))
    assert not has_attended_keys(model.network)
    recipe = lrcore.Recipe(data=str(story_file), samples=4, seq_len=24, method="fused")
    moments = lrcore.calibrate(model, recipe)
    monkeypatch.setattr(calibration, "collect", None)
    variants = (lrcore.factorize(model, moments, "fused", None, {"qk": q}) for q in QK)
    softmax, centered = (replace(item, options=None).evidence.spectra for item in variants)
    assert {slot: item.tail(1) for slot, item in softmax.items()} == {
        slot: item.tail(1) for slot, item in centered.items()
    }


QK = ("softmax", "centered")


@pytest.mark.parametrize("passes", ["independent", "sequential"])
def test_opt_is_compressed_with_attended_keys(passes, tiny_opt, story_file) -> None:
    model = lrcore.load(str(tiny_opt))
    recipe = lrcore.Recipe(
        data=str(story_file),
        samples=4,
        seq_len=24,
        method="fused",
        ratio=0.3,
        calibration_mode=passes,
        refit="off",
    )
    small = [lrcore.compress(model, recipe.with_(options={"qk": q})) for q in QK]
    weights = [dict(item.network.named_parameters()) for item in small]
    differ = [
        name for name, item in weights[0].items() if not torch.allclose(item, weights[1][name])
    ]
    assert any("k_proj" in name for name in differ)
    assert all(torch.isfinite(item).all() for item in weights[0].values())
