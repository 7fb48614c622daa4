"""Divergences from the change of the states that the head reads, with products in bfloat16."""

from dataclasses import replace

import pytest
import torch
from tiny_models import tiny

import lrcore
from lrcore.compression.evidence import head_differences
from lrcore.compression.evidence.divergence import DensePredictions
from lrcore.compression.evidence.head_differences import (
    HeadDifferences,
    multiplies_states,
    token_divergences,
)
from lrcore.compression.evidence.layer_probes import probe_key
from lrcore.compression.evidence.losses import BATCH
from lrcore.compression.evidence.probe_windows import select_windows
from lrcore.compression.evidence.probes import measure_divergences
from lrcore.models.layers import clone, read_layer, write_layer
from lrcore.models.stream import LayerStream


@pytest.fixture
def rounding(monkeypatch) -> None:
    """Probes round products on each processor, of each head."""
    monkeypatch.setattr(head_differences, "has_bfloat16_products", lambda device: True)
    monkeypatch.setattr(head_differences, "MIN_HEAD", 1)


@pytest.fixture
def case(tiny_llama, story_file):
    model = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(data=str(story_file), samples=6, seq_len=32)
    return model, lrcore.factorize(model, lrcore.calibrate(model, recipe), "a3")


def with_scaled_down(network, factor):
    """Return a copy with a scaled down projection in layer 1."""
    changed = clone(network)
    layer = read_layer(changed, 1)
    down = layer.mlp.down
    write_layer(changed, layer.with_matrices(down=replace(down, weight=factor * down.weight)))
    return changed


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_divergence_of_changed_logits_equals_that_of_the_softmax(size) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20, 50, generator=generator)
    changes = size * torch.randn(20, 50, generator=generator)
    dense, changed = (z.double().log_softmax(-1) for z in (logits, logits + changes))
    expected = (dense.exp() * (dense - changed)).sum(-1)
    # the divergence does not depend on the scale of the rounded probabilities
    measured = token_divergences(changes, 0.99 * logits.softmax(-1))
    torch.testing.assert_close(measured.double(), expected, rtol=1e-3, atol=2e-7)


@pytest.mark.parametrize("max_bytes", [2**28, 0])
@pytest.mark.parametrize("factor", [0.99, 0.0])
def test_divergences_equal_those_of_the_logits(case, factor, max_bytes) -> None:
    model, factors = case
    tokens, changed = factors.calibration.tokens, with_scaled_down(model.network, factor)
    hidden = LayerStream(model.network, tokens, BATCH).hidden
    expected = DensePredictions(model.network, tokens).divergences(changed, 0, hidden)
    differences = HeadDifferences(model.network, tokens, max_bytes)
    measured = differences.divergences(changed, 0, hidden)
    torch.testing.assert_close(measured, expected, rtol=0.01, atol=2e-7)
    assert differences.mean_loss() == DensePredictions(model.network, tokens).mean_loss()


def test_the_rounding_of_the_layers_is_subtracted(case, monkeypatch) -> None:
    monkeypatch.setattr(head_differences, "MIN_RATIO", 0.0)
    model, factors = case
    tokens, changed = factors.calibration.tokens, with_scaled_down(model.network, 0.99)
    hidden = LayerStream(model.network, tokens, BATCH).hidden
    differences = HeadDifferences(model.network, tokens)
    exact = differences.divergences(changed, 0, hidden).mean()
    rounded = differences.rounded_divergences(changed, 0, hidden).mean()
    with torch.autocast("cpu", torch.bfloat16):
        biased = differences.divergences(changed, 0, hidden).mean()
    assert 0 < abs(rounded - exact) < 0.5 * (biased - exact)


def test_changes_as_small_as_the_rounding_are_measured_in_float32(case) -> None:
    model, factors = case
    tokens, changed = factors.calibration.tokens, with_scaled_down(model.network, 0.999)
    hidden = LayerStream(model.network, tokens, BATCH).hidden
    differences = HeadDifferences(model.network, tokens)
    exact = differences.divergences(changed, 0, hidden)
    assert torch.equal(differences.rounded_divergences(changed, 0, hidden), exact)


def test_logits_of_a_family_that_caps_them_are_no_product() -> None:
    tokens = torch.arange(16).view(2, 8)
    capped = tiny("gemma2")
    assert multiplies_states(tiny("llama"), tokens)
    capped.config.final_logit_softcapping = 0.1
    assert not multiplies_states(capped, tokens)


def test_probes_with_rounded_products_agree_and_have_other_keys(case, rounding) -> None:
    model, factors = case
    tokens = select_windows(factors.calibration).probing
    loss, rounded = measure_divergences(model, factors, tokens, lambda *_: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_differences, "has_bfloat16_products", lambda device: False)
        float32_key = probe_key(factors, tokens)
        float32_loss, exact = measure_divergences(model, factors, tokens, lambda *_: None)
    assert float32_key != probe_key(factors, tokens)
    assert loss == pytest.approx(float32_loss)
    for slot, probes in exact.items():
        for ours, theirs in zip(rounded[slot], probes, strict=True):
            assert ours.increase == pytest.approx(theirs.increase, rel=0.1, abs=1e-6)
    assert rounded != exact
