"""What workers give is what one process gives."""

import json

import pytest
import torch
from pretended import Pretended, on
from tiny_models import family_folder

import lrcore
from lrcore.calibration import collect
from lrcore.cluster.pickling import pack
from lrcore.compression.evidence.joint import measure_interaction
from lrcore.compression.evidence.probes import measure_divergences
from lrcore.compression.factorise import truncate_layer
from lrcore.models.layers import clone
from lrcore.tensor_files import OffloadedList


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


def in_shares(model, recipe, folder, monkeypatch, engine):
    """A calibration by workers, in a cache of its own."""
    monkeypatch.setenv("LRCORE_CACHE", str(folder))
    with on(engine):
        return lrcore.calibrate(model, recipe)


@pytest.mark.parametrize(("count", "units"), [(1, 1), (2, 2), (5, 3)])
def test_moments_are_those_of_one_process(
    model, recipe, calibration, count, units, tmp_path, monkeypatch
) -> None:
    engine = Pretended(count, dying=[0])
    there = in_shares(model, recipe, tmp_path, monkeypatch, engine)
    assert there.key == calibration.key
    assert len(engine.sent) == units + calibration.layers
    for layer in range(calibration.layers):
        own, other = calibration.moments(layer), there.moments(layer)
        assert own.tokens == other.tokens
        assert own.values.keys() == other.values.keys()
        for need, value in own.values.items():
            if need[1] == "sample":
                assert torch.equal(value, other.values[need])
            else:
                # stored in float32, one that lies between two may go to either
                error = 1.2e-7 if need[1] == "second" else 1e-10
                least = error * float(value.abs().max())
                assert torch.allclose(value, other.values[need], rtol=error, atol=least), need
    assert sorted(path.name for path in there.folder.iterdir()) == [
        f"layer-{layer:04d}.safetensors" for layer in range(3)
    ]


def test_moments_of_experts_are_those_of_one_process(
    tiny_llama, story_file, tmp_path, monkeypatch
) -> None:
    folder = family_folder("mixtral", tiny_llama, tmp_path / "mixtral")
    model = lrcore.load(str(folder))
    recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=20, seq_len=32)
    here = lrcore.calibrate(model, recipe)
    there = in_shares(model, recipe, tmp_path / "cache", monkeypatch, Pretended(2))
    own, other = here.moments(1), there.moments(1)
    assert own.values.keys() == other.values.keys()
    for need, value in own.values.items():
        assert torch.allclose(value, other.values[need], rtol=1e-5, atol=1e-8), need


def test_a_killed_calibration_goes_on_with_what_is_there(
    model, recipe, calibration, tmp_path, monkeypatch
) -> None:
    plain, written = collect.write_moments, []

    def write(moments, path, dtype):
        if len(written) == 8:  # both shares of all three layers, and two that are joined
            raise KeyboardInterrupt
        written.append(path)
        plain(moments, path, dtype)

    monkeypatch.setattr(collect, "write_moments", write)
    with pytest.raises(KeyboardInterrupt):
        in_shares(model, recipe, tmp_path, monkeypatch, Pretended(2))
    monkeypatch.setattr(collect, "write_moments", lambda *given: (written.append(0), plain(*given)))
    there = in_shares(model, recipe, tmp_path, monkeypatch, Pretended(2))
    assert len(written) == 9
    assert there.block_influence == pytest.approx(calibration.block_influence, rel=1e-10)


def test_factors_are_the_same_and_stay_in_files(model, calibration) -> None:
    for method in ("a3", "latentllm"):
        here = lrcore.factorise(model, calibration, method)
        engine = Pretended(2, dying=[0])
        with on(engine):
            there = lrcore.factorise(model, calibration, method)
        assert len(engine.sent) == calibration.layers
        assert isinstance(there.layers, OffloadedList)
        assert max(map(len, map(pack, there.spectra.values()))) < 3000
        ranks = {slot: max(1, s.cost.full // 2) for slot, s in here.spectra.items()}
        states = []
        for factors in (here, there):
            network = clone(model.network)
            for index in range(len(factors.layers)):
                truncate_layer(network, index, factors.layers[index], ranks)
            states.append(network.state_dict())
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
        assert [len(list(s.values)) for s in here.spectra.values()] == [
            len(list(s.values)) for s in there.spectra.values()
        ]
        assert here.evidence.get("outliers") == there.evidence.get("outliers")


def test_an_evaluation_is_the_same_to_the_bit(model, recipe) -> None:
    settings = lrcore.EvaluationSettings(recipe.data, 9, 16)
    here, seen = lrcore.evaluate(model, settings, batch=2), []
    engine = Pretended(2)
    with on(engine):
        there = lrcore.evaluate(model, settings, batch=2, progress=lambda *s: seen.append(s))
    assert len(engine.sent) == 5
    assert (there.nll, there.tokens, there.protocol) == (here.nll, here.tokens, here.protocol)
    assert seen[-1] == ("evaluate", 9, 9)


def test_probes_are_the_same_to_the_bit(model, calibration) -> None:
    factors = lrcore.factorise(model, calibration, "svd_llm")
    tokens = calibration.tokens[:4, :16]
    here = measure_divergences(model, factors, tokens, silent)
    engine = Pretended(2, dying=[1])
    with on(engine):
        assert measure_divergences(model, factors, tokens, silent) == here
    assert engine.sent == [0, 1, 1]


def test_plans_measured_whole_are_the_same_to_the_bit(model, recipe, tmp_path, monkeypatch) -> None:
    probed = recipe.with_(method="fused", policy="probed")
    factors = lrcore.prepare(model, probed)
    here = factors.evidence.get("probes").interaction
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))  # where they are not known
    engine = Pretended(2, dying=[1])
    with on(engine):
        assert measure_interaction(model, factors, probed, silent) == here
    assert len(here.joint) == 3
    assert {*engine.sent} == {0, 1}
    assert len(engine.sent) >= 3


def test_a_sweep_has_the_same_rows_and_cells(model, recipe, tmp_path) -> None:
    evaluations = (lrcore.EvaluationSettings(recipe.data, 2, 16),)
    sweep = lrcore.Sweep(recipe, ["svd", "a3"], ratios=[0.2, 0.4], evaluations=evaluations)
    here = lrcore.run_sweep(model, sweep, tmp_path / "here")
    engine = Pretended(2, dying=[2])
    with on(engine):
        assert lrcore.run_sweep(model, sweep, tmp_path / "there") == here
    cells = [sorted((tmp_path / place / "cells").iterdir()) for place in ("here", "there")]
    assert [path.name for path in cells[0]] == [path.name for path in cells[1]]
    for one, other in zip(*cells, strict=True):
        kept = [json.loads(path.read_text()) for path in (one, other)]
        assert kept[0] == kept[1]
