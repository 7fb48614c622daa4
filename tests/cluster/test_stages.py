"""What workers give is what one process gives."""

import json

import pytest
from pretended import Pretended, on

import lrcore
from lrcore.compression.evidence.probes import measure_divergences


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


def test_probes_are_the_same_to_the_bit(model, calibration) -> None:
    factors = lrcore.factorise(model, calibration, "svd_llm")
    tokens = calibration.tokens[:4, :16]
    here = measure_divergences(model, factors, tokens, silent)
    engine = Pretended(2, dying=[1])
    with on(engine):
        assert measure_divergences(model, factors, tokens, silent) == here
    assert engine.sent == [0, 1, 1]


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
