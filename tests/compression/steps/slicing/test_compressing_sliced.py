"""Compression after SliceGPT with a basis per component (MoDeGPT, table 16)."""

from dataclasses import replace

import pytest
import torch

import lrcore
from lrcore.compression.solve import refit
from lrcore.compression.steps.slicing.slicing import slice_network
from lrcore.layers.modules.sliced import residual_parameters
from lrcore.models.architectures import decoder_layers
from lrcore.recipes.history import Sliced

TOKENS = torch.arange(48).view(2, 24)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.network(input_ids=TOKENS).logits


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama), dtype="float64")


@pytest.fixture(scope="module")
def rotated_model(model, story_file):
    """Return a model with the same function and a rotated stream, without slicing."""
    tokens = lrcore.calibrate(model, recipe_on(story_file)).tokens
    network = slice_network(model.network, tokens, 32, "block", lambda *_: None)
    return replace(model, network=network, fingerprint="turned")


def recipe_on(story_file) -> lrcore.Recipe:
    return lrcore.Recipe(data=str(story_file), samples=8, seq_len=32, ratio=0.3, dtype="float64")


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "modegpt", "policy": "softmax_dual"},
        {"method": "fused", "policy": "flat"},
        {"method": "svd_llm", "calibration_mode": "sequential"},
        {"method": "latentllm"},
    ],
    ids=lambda fields: fields["method"],
)
def test_rotated_model_is_compressed_like_the_dense_model(
    model, rotated_model, story_file, fields, monkeypatch
) -> None:
    """Influence, angles, moments and refits do not depend on the basis of the stream.

    Methods with a ridge on the inputs are excluded, and so is the refit of projections that read a
    norm: the scale of the norm is part of their matrices here.
    """
    monkeypatch.setattr(refit, "READ_BY", dict.fromkeys(refit.READ_BY, ()))
    recipe = recipe_on(story_file).with_(**fields)
    share = model.size.decoder_linear / rotated_model.size.decoder_linear
    plain = lrcore.compress(model, recipe)
    compressed_rotated = lrcore.compress(rotated_model, recipe.with_(ratio=0.3 * share))
    ranks = [
        [slot_rank.rank for slot_rank in small.history[-1].ranks]
        for small in (plain, compressed_rotated)
    ]
    assert ranks[0] == ranks[1]
    expected = logits(plain)
    assert (expected - logits(model)).abs().max() > 1e-3 * expected.abs().max()
    assert torch.allclose(
        logits(compressed_rotated), expected, rtol=0, atol=1e-5 * float(expected.abs().max())
    )


@pytest.mark.parametrize("folder", ["tiny_llama", "tiny_opt"])
def test_sliced_model_is_compressed_counted_saved_and_exported(
    request, story_file, tmp_path, folder
) -> None:
    dense = lrcore.load(str(request.getfixturevalue(folder)))
    recipe = recipe_on(story_file).with_(dtype="float32", method="modegpt")
    sliced = lrcore.slice_hidden(dense, recipe.with_(ratio=0.15))
    small = lrcore.compress(sliced, recipe.with_(ratio=0.2, component_ratios={"mlp": 0.25}))
    residual = sum(map(residual_parameters, decoder_layers(small.network)))
    assert residual == sliced.step(Sliced).residual_parameters > 0
    assert small.size.decoder_linear == small.account.model.decoder_parameters
    assert small.size.decoder_linear <= 0.8 * sliced.size.decoder_linear
    for out in (lrcore.save(small, tmp_path / "saved"), lrcore.export(small, tmp_path / "out")):
        assert torch.equal(logits(lrcore.load(str(out))), logits(small))
    assert lrcore.generate(small, "Once", max_new_tokens=4)
