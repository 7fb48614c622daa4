"""Figures of a model with 80 layers and a hidden size of 8192."""

import json

import numpy as np
import pytest

import lrcore
from scripts import large_model
from workbench.figures.base import MAX_POINTS, thinned_indices
from workbench.figures.cell import HeatmapCell, cell_figures
from workbench.figures.spectra import heat_figure
from workbench.tabs.allocation import plan_figures


@pytest.fixture(scope="module")
def analysis():
    return large_model.analysis()


def test_the_curves_of_a_cell_are_thinned(analysis):
    for name in ("qk", "mlp", "down"):
        values_json, energy, _ = cell_figures(analysis, HeatmapCell(57, name, rank=100), log=True)
        assert len(values_json) + len(energy) < 60_000
        for kind, trace in zip(("aware", "raw"), json.loads(values_json)["data"], strict=True):
            values, ranks = analysis.values(57, name, kind), np.array(trace["x"])
            assert len(ranks) <= MAX_POINTS
            assert (ranks[0], ranks[-1]) == (1, len(values))
            np.testing.assert_allclose(trace["y"], values[ranks - 1])


def test_thinned_curves_are_close_to_all_values_on_the_log_axis(analysis):
    """The error of interpolated values is below the width of a line: 2 of 330 pixels."""
    values = np.log10(analysis.values(79, "mlp", "raw"))
    ranks = np.arange(1, len(values) + 1)
    drawn_ranks = np.array(thinned_indices(len(values))) + 1
    error = np.abs(np.interp(ranks, drawn_ranks, values[drawn_ranks - 1]) - values).max()
    assert error < 2 / 330 * np.ptp(values)


def test_the_heatmap_has_one_number_per_cell(analysis):
    figure = heat_figure(analysis.table(0.9), "effective_rank", "aware")
    assert len(figure) < 80_000
    assert len(json.loads(figure)["data"][0]["z"]) == len(large_model.HEADS | large_model.COUNTS)


def test_a_threshold_changes_only_the_energy_rank(analysis):
    low, high = analysis.table(0.5), analysis.table(0.99)
    assert (low["energy_rank"] <= high["energy_rank"]).all()
    assert (low["energy_rank"] < high["energy_rank"]).any()
    assert low.drop(columns="energy_rank").equals(high.drop(columns="energy_rank"))


def test_the_bars_of_80_layers_are_small():
    factors, recipe = large_model.factors(), lrcore.Recipe(ratio=0.3)
    plan = lrcore.allocate(factors, recipe)
    assert len(plan_figures.bars(plan, plan, {})) < 60_000
    assert plan.summary()["achieved"] == pytest.approx(0.3, abs=1e-3)
