"""Evaluation of models on text without the calibration text, or with a flag in the protocol."""

import json

import pytest

import lrcore
from lrcore.evaluation.contributions import contributions
from lrcore.evaluation.local_errors import local_errors
from lrcore.recipes.history import Healed

WINDOWS = {"samples": 4, "seq_len": 32}


@pytest.fixture(scope="module")
def long(tmp_path_factory, story_text):
    path = tmp_path_factory.mktemp("held-out") / "long.txt"
    path.write_text(" ".join([story_text] * 4), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pair(tiny_llama, long):
    dense = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(str(tiny_llama), data=str(long), method="svd_llm", ratio=0.3, **WINDOWS)
    return dense, lrcore.compress(dense, recipe)


def test_a_calibration_file_is_evaluated_on_its_held_out_tail(pair, long) -> None:
    dense, small = pair
    evaluated = lrcore.evaluate(small, str(long), **WINDOWS)
    assert evaluated.protocol["source"] == f"{long}:test"
    assert "held out" in evaluated.protocol["part"]
    assert "on_calibration_text" not in evaluated.protocol
    comparison = lrcore.compare(dense, small, str(long), **WINDOWS)
    assert comparison.small.protocol["fingerprint"] == evaluated.protocol["fingerprint"]
    assert comparison.dense.protocol["fingerprint"] == evaluated.protocol["fingerprint"]
    for measure in (contributions, local_errors):
        assert measure(dense, small, str(long), **WINDOWS).protocol["source"] == f"{long}:test"
    # a file without calibrated models is evaluated completely
    assert lrcore.evaluate(dense, str(long), **WINDOWS).protocol["source"] == str(long)


def test_the_protocol_states_that_the_calibration_text_was_used(
    pair, long, small_of, tiny_llama, story_file
) -> None:
    _, small = pair
    for split in ("all", "calibration"):
        protocol = lrcore.evaluate(small, f"{long}:{split}", **WINDOWS).protocol
        assert protocol["on_calibration_text"] is True
    short = small_of(tiny_llama, "svd_llm")  # the file is too short to be divided
    assert lrcore.evaluate(short, str(story_file), **WINDOWS).protocol["on_calibration_text"]


def test_a_saved_model_remembers_its_calibration_text(pair, long, tmp_path) -> None:
    reloaded = lrcore.load(str(lrcore.save(pair[1], tmp_path / "small")))
    assert lrcore.evaluate(reloaded, str(long), **WINDOWS).protocol["source"] == f"{long}:test"


def test_a_model_with_pruned_layers_remembers_its_calibration_text(pair, long) -> None:
    dense, small = pair
    short = lrcore.prune_layers(dense, small.recipe, 1)
    assert lrcore.evaluate(short, str(long), **WINDOWS).protocol["source"] == f"{long}:test"


def test_healing_is_evaluated_on_the_held_out_tail(pair, long) -> None:
    healed = lrcore.heal(pair[1], samples=4, seq_len=32, steps=1, batch=2, test_samples=2)
    step = healed.step(Healed)
    assert step.test_protocol["source"] == f"{long}:test"
    assert step.protocol["source"] == f"{long}:calibration"


def test_all_models_of_a_comparison_are_evaluated_on_the_same_text(pair, long):
    from lrcore.evaluation.compare_models import compare_models

    stories_model = lrcore.compress(pair[0], pair[1].recipe.with_(data="stories"))
    settings = lrcore.EvaluationSettings(str(long), **WINDOWS)
    result = compare_models([pair[0], stories_model, pair[1]], settings)
    alone = lrcore.evaluate(stories_model, f"{long}:test", **WINDOWS)
    assert result["models"][1]["perplexity"] == pytest.approx(alone.perplexity)


def test_a_sweep_evaluates_the_dense_model_on_the_same_tail(pair, long, tmp_path) -> None:
    dense, small = pair
    evaluation = lrcore.EvaluationSettings(str(long), **WINDOWS)
    sweep = lrcore.Sweep(small.recipe, evaluations=(evaluation,))
    rows = lrcore.run_sweep(dense, sweep, tmp_path)
    assert {row.measured_on for row in rows} == {f"{long}:test"}
    assert len({json.dumps(row.protocol["fingerprint"]) for row in rows}) == 1
