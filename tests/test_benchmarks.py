"""The figures of docs/benchmarks.md that are worked out of the measured ones."""

import sys
from math import exp
from pathlib import Path

import pytest

import lrcore

SCRIPTS = str(Path(__file__).resolve().parents[1] / "scripts")
sys.path.insert(0, SCRIPTS)
from bench.quality import Cells, median_error  # noqa: E402 (its folder is no package)

sys.path.remove(SCRIPTS)


def test_the_error_of_a_prediction_is_that_of_the_rise_of_the_loss() -> None:
    pairs = [(2 * exp(one), 2 * exp(two)) for one, two in ((0.1, 0.2), (0.3, 0.2), (0.2, 0.2))]
    assert median_error(pairs, 2.0) == pytest.approx(0.5)
    assert median_error([*pairs, (2.1, 1.9)], 2.0) == pytest.approx(0.5)  # no rise, no share of it


def test_a_run_that_goes_on_measures_the_cells_that_the_record_lacks() -> None:
    known = {f"care probed kv {ratio}" for ratio in (0.1, 0.2, 0.3, 0.4)}
    base = lrcore.Recipe()
    wanted = Cells(policies=("probed",), missing=True).recipes(base, "care", known)
    assert [(recipe.method, recipe.policy, recipe.ratio) for recipe in wanted] == [
        ("care", "probed", 0.5)
    ]
    assert len(list(Cells(policies=("probed",)).recipes(base, "care", known))) == 5
