"""Waits of a GPU, counted on a simulated device: calibration, factorization, decoding.

docs/scale.md lists the counts.
"""

from pathlib import Path

import pytest
import torch
from pretended_device import NAME, Device

import lrcore

LAYERS, TOKENS = 3, 4
# Waits per layer of a factorization, for the outliers of the layer included. The spectra of a layer
# are copied to the CPU, and damping a matrix reads its trace.
WAITS = {"a3": 8, "svd_llm": 9, "flap": 4}
# Kernels per token and layer of a decoder, in addition to those of the dense model.
MORE_KERNELS = {"a3": 2, "svd_llm": 7, "modegpt": 2, "care": 13, "latentllm": 21}


@pytest.fixture
def recipe(tiny_llama: Path, story_file: Path) -> lrcore.Recipe:
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=16, seq_len=64, ratio=0.2)


@pytest.mark.parametrize("method", list(WAITS))
def test_factorizing_waits_a_few_times_per_layer(method, recipe) -> None:
    with Device() as device:
        model = lrcore.load(recipe.model, device=NAME)
        calibration = lrcore.calibrate(model, recipe)
        device.waits.clear()
        lrcore.factorize(model, calibration, method)
    assert device.waits.total() <= WAITS[method] * LAYERS, device.waits


def test_calibration_waits_only_to_write_the_statistics(recipe, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    with Device() as device:
        model = lrcore.load(recipe.model, device=NAME)
        device.waits.clear()
        calibration = lrcore.calibrate(model, recipe)
    statistics = len(calibration.moments(0).values)
    assert device.waits.total() == statistics * LAYERS, device.waits


def decoded(model: lrcore.LoadedModel, device: Device) -> tuple[float, int]:
    """Return kernels per token and layer, and waits for the device, of TOKENS decoded tokens."""
    network, ids = model.network, torch.arange(3, 19).unsqueeze(0).to(NAME)
    with torch.inference_mode():
        out = network(ids, use_cache=True)
        device.kernels.clear()
        device.waits.clear()
        for _ in range(TOKENS):
            token = out.logits[:, -1:].argmax(-1)
            out = network(token, past_key_values=out.past_key_values, use_cache=True)
    return device.kernels.total() / TOKENS / LAYERS, device.waits.total()


@pytest.mark.parametrize("method", list(MORE_KERNELS))
def test_decoder_never_waits_and_starts_few_more_kernels(method, recipe) -> None:
    with Device() as device:
        model = lrcore.load(recipe.model, device=NAME)
        small = lrcore.compress(model, recipe.with_(method=method))
        dense_kernels, _ = decoded(model, device)
        kernels, waits = decoded(small, device)
    assert waits == 0, device.waits
    assert kernels - dense_kernels <= MORE_KERNELS[method]
