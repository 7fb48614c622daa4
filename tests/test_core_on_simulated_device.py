"""The core on a device other than the CPU, with and without float64: results, files and messages
equal those on the CPU, and tensors are on the right device.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from pretended_device import NAME, Away, Device

import lrcore
from lrcore.compression.solve import trained_layer
from lrcore.evaluation.local_errors import local_errors
from lrcore.layers import linalg
from lrcore.methods import METHODS
from lrcore.ranks.policies import POLICIES

pytestmark = pytest.mark.one_in(3)

TOLERANCE = 1e-6  # relative; products equal those on the CPU except for the batches
CACHE_METHODS = ("care", "mha2mla", "transmla")  # methods that shrink the KV cache alone
MEASURING_POLICIES = (
    "fisher",
    "mix",
    "probed",
)  # policies whose evidence the model itself is run for


@pytest.fixture(
    params=[
        pytest.param(True, id="float64", marks=pytest.mark.one_in(4)),
        pytest.param(False, id="no float64"),
    ]
)
def device(request, monkeypatch) -> Device:
    if not request.param:
        monkeypatch.setattr(linalg, "WITHOUT_FLOAT64", {*linalg.WITHOUT_FLOAT64, NAME})
    return Device(request.param)


@pytest.fixture
def recipe(tiny_llama: Path, story_file: Path) -> lrcore.Recipe:
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.2)


def on_both_devices(
    device: Device,
    cache: Path,
    recipe: lrcore.Recipe,
    work: Callable[[lrcore.LoadedModel], object],
) -> tuple[object, object]:
    """Return the results on the CPU and on the simulated device, with separate caches."""
    results = []
    for name in ("cpu", NAME):
        with pytest.MonkeyPatch.context() as patch, device:
            patch.setenv("LRCORE_CACHE", str(cache / name))
            results.append(work(lrcore.load(recipe.model, device=name)))
    return results[0], results[1]


def is_on_its_device(model: lrcore.LoadedModel) -> bool:
    tensors = [*model.network.parameters(), *model.network.buffers()]
    filled = [tensor for tensor in tensors if tensor.numel()]  # empty tensors stay on the CPU
    return all(isinstance(tensor, Away) == (model.device.type == NAME) for tensor in filled)


def made(
    change: Callable[[lrcore.LoadedModel], lrcore.LoadedModel],
    recipe: lrcore.Recipe,
    model: lrcore.LoadedModel,
) -> float:
    """Return the perplexity of the changed model."""
    small = change(model)
    assert is_on_its_device(small)
    return lrcore.evaluate(small, recipe.data, samples=4, seq_len=32).perplexity


def assert_same(pair: tuple[object, object], tolerance: float = TOLERANCE) -> None:
    assert math.isfinite(float(pair[0]))
    assert pair[1] == pytest.approx(pair[0], rel=tolerance)


@pytest.mark.parametrize("method", list(METHODS))
def test_all_methods_give_the_same_perplexity(
    method: str, device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    budget = {"budget": "kv"} if method in CACHE_METHODS else {"ratio": 0.1}
    method_recipe = replace(recipe, method=method, **budget)
    work = partial(made, partial(lrcore.compress, recipe=method_recipe), method_recipe)
    assert_same(on_both_devices(device, tmp_path, method_recipe, work))


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "bolaco"])
def test_all_policies_give_the_same_perplexity(
    policy: str, device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    if not device.float64 and policy not in MEASURING_POLICIES:
        pytest.skip("the policy reads spectra, which are on the CPU")
    policy_recipe = replace(recipe, method="a3", policy=policy)
    work = partial(made, partial(lrcore.compress, recipe=policy_recipe), policy_recipe)
    assert_same(on_both_devices(device, tmp_path, policy_recipe, work))


def small(model: lrcore.LoadedModel, recipe: lrcore.Recipe) -> lrcore.LoadedModel:
    return lrcore.compress(model, replace(recipe, method="svd_llm"))


CHANGES: dict[str, Callable[[lrcore.LoadedModel, lrcore.Recipe], lrcore.LoadedModel]] = {
    "fused, probed": lambda model, recipe: lrcore.compress(  # the probes of one layer are enough
        lrcore.drop_layers(model, [1, 2]), replace(recipe, method="fused", policy="probed")
    ),
    "fused, trained": lambda model, recipe: lrcore.compress(
        model, replace(recipe, method="fused", refit="trained")
    ),
    "quantised": lambda model, recipe: lrcore.quantize(small(model, recipe)),
    "healed": lambda model, recipe: lrcore.heal(
        small(model, recipe), recipe.data, steps=2, seq_len=16
    ),
    "sliced": lrcore.slice_hidden,
    "shortened": lambda model, recipe: lrcore.prune_layers(model, recipe, 1),
    "shared": lrcore.share_bases,
    "sparse": lrcore.sparsify,
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_all_other_steps_give_the_same_perplexity(
    change: str,
    device: Device,
    recipe: lrcore.Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trained_layer, "PASSES", 1)  # many operations, each a Python call here
    monkeypatch.setattr(trained_layer, "MIN_STEPS", 4)
    work = partial(made, lambda model: CHANGES[change](model, recipe), recipe)
    tolerance = 1e-4 if "trained" in change else TOLERANCE  # Adam amplifies rounding errors
    assert_same(on_both_devices(device, tmp_path, recipe, work), tolerance)


FIGURES: dict[str, Callable[[lrcore.LoadedModel, lrcore.Recipe], float]] = {
    "energy": lambda model, recipe: float(
        sum(
            spectrum.sum()
            for spectrum in lrcore.analyze(model, lrcore.calibrate(model, recipe)).spectra.values()
        )
    ),
    "divergence": lambda model, recipe: (
        lrcore.compare(model, small(model, recipe), recipe.data, samples=4, seq_len=32).kl
    ),
    "local errors": lambda model, recipe: sum(
        local_errors(model, small(model, recipe), recipe.data, samples=2, seq_len=32)
        .errors[0]
        .values()
    ),
}


@pytest.mark.parametrize("figure", list(FIGURES))
def test_all_figures_have_the_same_values(
    figure: str, device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    assert_same(
        on_both_devices(device, tmp_path, recipe, lambda model: FIGURES[figure](model, recipe))
    )


def test_a_model_is_saved_loaded_exported_and_generates_the_same_text(
    device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    def work(model: lrcore.LoadedModel) -> tuple[str, torch.Tensor]:
        folder = tmp_path / model.device.type
        lrcore.save(small(model, recipe), folder / "saved")
        loaded = lrcore.load(str(folder / "saved"), device=str(model.device))
        assert is_on_its_device(loaded)
        lrcore.export(loaded, folder / "exported")
        with torch.inference_mode():
            ids = torch.arange(3, 20).view(1, -1).to(model.device)
            logits = loaded.network(input_ids=ids).logits
        return lrcore.generate(loaded, "Once", max_new_tokens=8), logits.cpu()

    (text, logits), (device_text, moved) = on_both_devices(device, tmp_path, recipe, work)
    assert text == device_text
    assert torch.allclose(logits, moved, rtol=TOLERANCE, atol=TOLERANCE)


FILES = {"llama.cpp": lrcore.export_gguf, "mla": lrcore.export_mla}


@pytest.mark.parametrize("target", list(FILES))
def test_a_model_is_exported_to_other_formats(
    target: str, device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    def work(model: lrcore.LoadedModel) -> list[str]:
        folder = tmp_path / model.device.type
        folder.mkdir()
        made = lrcore.compress(model, replace(recipe, method="modegpt", target=target))
        FILES[target](made, folder / "file.gguf")
        return [file.name for file in sorted(folder.rglob("*")) if file.stat().st_size]

    cpu_files, device_files = on_both_devices(device, tmp_path / "cache", recipe, work)
    assert cpu_files == device_files != []


def test_a_dtype_that_the_device_lacks_is_refused(
    device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    def load(offload: bool) -> lrcore.LoadedModel:
        return lrcore.load(recipe.model, dtype="float64", device=NAME, offload=offload)

    with device:
        for offload in (False, True):
            if device.float64:
                assert load(offload).device.type == NAME
            else:
                with pytest.raises(lrcore.InputError, match="does not support float64"):
                    load(offload)


@pytest.mark.parametrize("method", ["a3", "fused"])
def test_a_model_with_offloaded_layers_is_compressed(
    method: str, device: Device, recipe: lrcore.Recipe, tmp_path: Path
) -> None:
    def work(model: lrcore.LoadedModel) -> float:
        offload_recipe = replace(recipe, method=method, offload=True)
        away = lrcore.load(recipe.model, device=str(model.device), offload=True)
        small = lrcore.compress(away, offload_recipe)
        return lrcore.evaluate(small, recipe.data, samples=4, seq_len=32).perplexity

    assert_same(on_both_devices(device, tmp_path, recipe, work))
