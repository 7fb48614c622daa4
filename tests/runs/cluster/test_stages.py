"""Results of several workers, compared with those of a single process."""

import json

import pytest
import torch
from pretended import Pretended, on
from tiny_models import family_folder

import lrcore
from lrcore.compression.calibration import collect
from lrcore.compression.evidence.joint_probes import measure_interaction
from lrcore.compression.evidence.probes import measure_divergences
from lrcore.compression.solve.factorize import truncate_layer
from lrcore.models.layers import clone
from lrcore.runs import sweep_store
from lrcore.runs.cluster.pickling import pack
from lrcore.system.tensor_files import OffloadedList


def silent(*_):
    pass


@pytest.fixture(scope="module")
def model(tiny_llama):
    return lrcore.load(str(tiny_llama))


@pytest.fixture(scope="module")
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=20, seq_len=32, ratio=0.3)


@pytest.fixture(scope="module")
def calibration(model, recipe):
    return lrcore.calibrate(model, recipe)


def calibrate_on(model, recipe, folder, monkeypatch, engine):
    """Return a calibration by the workers of an engine, with a separate cache."""
    monkeypatch.setenv("LRCORE_CACHE", str(folder))
    with on(engine):
        return lrcore.calibrate(model, recipe)


@pytest.mark.parametrize(("count", "units"), [(1, 1), (2, 2), (5, 3)])
def test_moments_equal_those_of_a_single_process(
    model, recipe, calibration, count, units, tmp_path, monkeypatch
) -> None:
    engine = Pretended(count, dying=[0])
    distributed = calibrate_on(model, recipe, tmp_path, monkeypatch, engine)
    assert distributed.key == calibration.key
    assert len(engine.sent) == units + calibration.layers
    for layer in range(calibration.layers):
        moments, other_moments = calibration.moments(layer), distributed.moments(layer)
        assert moments.tokens == other_moments.tokens
        assert moments.values.keys() == other_moments.values.keys()
        for need, value in moments.values.items():
            if need[1] == "sample":
                assert torch.equal(value, other_moments.values[need])
            else:
                # rounding to float32 may differ in the last bit
                error = 1.2e-7 if need[1] == "second" else 1e-10
                tolerance = error * float(value.abs().max())
                assert torch.allclose(
                    value, other_moments.values[need], rtol=error, atol=tolerance
                ), need
    assert sorted(path.name for path in distributed.folder.iterdir()) == [
        f"layer-{layer:04d}.safetensors" for layer in range(3)
    ]


def test_moments_of_experts_equal_those_of_a_single_process(
    tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    folder = family_folder("mixtral", tiny_llama, tmp_path / "mixtral")
    model = lrcore.load(str(folder))
    recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=20, seq_len=32)
    local = lrcore.calibrate(model, recipe)
    distributed = calibrate_on(model, recipe, tmp_path / "cache", monkeypatch, Pretended(2))
    moments, other_moments = local.moments(1), distributed.moments(1)
    assert moments.values.keys() == other_moments.values.keys()
    for need, value in moments.values.items():
        assert torch.allclose(value, other_moments.values[need], rtol=1e-5, atol=1e-8), need


def test_a_killed_calibration_resumes_with_the_stored_parts(
    model, recipe, calibration, tmp_path, monkeypatch
) -> None:
    plain, written = collect.write_moments, []

    def write(moments, path, dtype):
        if len(written) == 8:  # both parts of all three layers, and two joined parts
            raise KeyboardInterrupt
        written.append(path)
        plain(moments, path, dtype)

    monkeypatch.setattr(collect, "write_moments", write)
    with pytest.raises(KeyboardInterrupt):
        calibrate_on(model, recipe, tmp_path, monkeypatch, Pretended(2))
    monkeypatch.setattr(
        collect, "write_moments", lambda *arguments: (written.append(0), plain(*arguments))
    )
    distributed = calibrate_on(model, recipe, tmp_path, monkeypatch, Pretended(2))
    assert len(written) == 9
    assert distributed.block_influence == pytest.approx(calibration.block_influence, rel=1e-10)


def test_factors_are_equal_and_remain_in_files(model, calibration) -> None:
    for method in ("a3", "latentllm"):
        local = lrcore.factorize(model, calibration, method)
        engine = Pretended(2, dying=[0])
        with on(engine):
            distributed = lrcore.factorize(model, calibration, method)
        assert len(engine.sent) == calibration.layers
        assert isinstance(distributed.layers, OffloadedList)
        assert max(map(len, map(pack, distributed.spectra.values()))) < 3000
        ranks = {slot: max(1, s.cost.full // 2) for slot, s in local.spectra.items()}
        states = []
        for factors in (local, distributed):
            network = clone(model.network)
            for index in range(len(factors.layers)):
                truncate_layer(network, index, factors.layers[index], ranks)
            states.append(network.state_dict())
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
        assert [len(list(s.values)) for s in local.spectra.values()] == [
            len(list(s.values)) for s in distributed.spectra.values()
        ]
        assert local.evidence.get("outliers") == distributed.evidence.get("outliers")


def test_an_evaluation_is_equal_to_the_bit(model, recipe) -> None:
    settings = lrcore.EvaluationSettings(recipe.data, 9, 16)
    local, seen = lrcore.evaluate(model, settings, batch=2), []
    engine = Pretended(2)
    with on(engine):
        distributed = lrcore.evaluate(model, settings, batch=2, progress=lambda *s: seen.append(s))
    assert len(engine.sent) == 5
    assert (distributed.nll, distributed.tokens, distributed.protocol) == (
        local.nll,
        local.tokens,
        local.protocol,
    )
    assert seen[-1] == ("evaluate", 9, 9)


def test_probes_are_equal_to_the_bit(model, calibration) -> None:
    factors = lrcore.factorize(model, calibration, "svd_llm")
    tokens = calibration.tokens[:4, :16]
    local = measure_divergences(model, factors, tokens, silent)
    engine = Pretended(2, dying=[1])
    with on(engine):
        assert measure_divergences(model, factors, tokens, silent) == local
    assert engine.sent == [0, 1, 1]


def test_measurements_of_complete_plans_are_equal_to_the_bit(
    model, recipe, tmp_path, monkeypatch
) -> None:
    probed = recipe.with_(method="fused", policy="probed")
    factors = lrcore.prepare(model, probed)
    local = factors.evidence.get("probes").interaction
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))  # a cache without the measurements
    engine = Pretended(2, dying=[1])
    with on(engine):
        assert measure_interaction(model, factors, probed, silent) == local
    assert len(local.joint) == 3
    assert {*engine.sent} == {0, 1}
    assert len(engine.sent) >= 3


def test_a_sweep_gives_the_same_rows_and_cells(model, recipe, tmp_path) -> None:
    evaluations = (lrcore.EvaluationSettings(recipe.data, 2, 16),)
    sweep = lrcore.Sweep(recipe, ["svd", "a3"], ratios=[0.2, 0.4], evaluations=evaluations)
    local = lrcore.run_sweep(model, sweep, tmp_path / "here")
    engine = Pretended(2, dying=[2])
    with on(engine):
        assert lrcore.run_sweep(model, sweep, tmp_path / "there") == local
    cells = [sorted((tmp_path / folder / "cells").iterdir()) for folder in ("here", "there")]
    assert [path.name for path in cells[0]] == [path.name for path in cells[1]]
    for local_cell, cluster_cell in zip(*cells, strict=True):
        contents = [json.loads(path.read_text()) for path in (local_cell, cluster_cell)]
        assert contents[0] == contents[1]


def test_a_sweep_evaluates_the_dense_model_once(model, recipe, tmp_path, monkeypatch) -> None:
    plain, evaluated = sweep_store.evaluate, []

    def evaluate(measured, *arguments, **settings):
        evaluated.append(measured.fingerprint)
        return plain(measured, *arguments, **settings)

    monkeypatch.setattr(sweep_store, "evaluate", evaluate)
    evaluations = (lrcore.EvaluationSettings(recipe.data, 2, 16),)
    sweep = lrcore.Sweep(recipe, ["svd", "a3"], ratios=[0.2], evaluations=evaluations)
    engine = Pretended(2)
    with on(engine):
        lrcore.run_sweep(model, sweep, tmp_path)
    assert {*engine.sent} == {0, 1}
    assert evaluated.count(model.fingerprint) == 1
