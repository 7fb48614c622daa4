"""Curves of several layers in one plot, and a plot for each head."""

import json
from dataclasses import replace

import numpy as np
import pytest
from page_values import click

import lrcore
from workbench.figures.base import tick_label
from workbench.figures.cell import (
    ALL_LAYERS,
    EVERY_HEAD,
    MAX_NAMED_LAYERS,
    HeatmapCell,
    cell_figures,
    layer_curves,
)
from workbench.figures.curves import Curves, curves
from workbench.figures.head_grid import head_grid
from workbench.figures.sensitivity import against_energy
from workbench.state.keys import calibration_key
from workbench.state.sensitivity import ProbedSlot
from workbench.state.store import Store
from workbench.tabs import spectra
from workbench.widgets.form import input_values

RECIPE = lrcore.Recipe(samples=4, seq_len=32)
KEY = list(calibration_key(RECIPE))
VALUES = input_values(RECIPE)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    store.analysis(RECIPE)
    return store


def names(figure: str) -> list[str]:
    return [trace.get("name") for trace in json.loads(figure)["data"]]


def test_all_layers_of_a_component_are_drawn_with_the_selected_one_in_front(store):
    analysis = store.analysis(RECIPE)
    values, lost, _ = cell_figures(
        analysis, HeatmapCell(2, "ov", compared_layers=[ALL_LAYERS]), log=True
    )
    assert sorted(names(values)) == [f"layer {i}" for i in range(analysis.layers)]
    chosen = json.loads(values)["data"][-1]  # in front
    assert chosen["name"] == "layer 2"
    assert chosen["y"] == pytest.approx(analysis.values(2, "ov").tolist())
    widths = [trace["line"]["width"] for trace in json.loads(lost)["data"]]
    assert widths[-1] > max(widths[:-1])


def test_many_layers_are_colored_by_a_scale():
    layers = {i: np.array([2.0, 1.0]) for i in range(MAX_NAMED_LAYERS + 1)}
    *lines, scale = json.loads(curves(layer_curves(Curves("value", []), layers, 3)))["data"]
    assert len({line["line"]["color"] for line in lines}) == MAX_NAMED_LAYERS + 1
    assert not any(line["showlegend"] for line in lines)
    assert scale["marker"]["cmax"] == MAX_NAMED_LAYERS


def test_each_head_has_its_own_plot_with_common_axes(store):
    analysis = store.analysis(RECIPE)
    heads = analysis.heads(1, "qk")
    values, lost, heading = cell_figures(analysis, HeatmapCell(1, "qk", EVERY_HEAD, 8), log=True)
    assert "each head" in heading
    for figure in map(json.loads, (values, lost)):
        layout, traces = figure["layout"], figure["data"]
        assert {trace["yaxis"] for trace in traces} == {
            "y" + (str(i + 1) if i else "") for i in range(heads)
        }
        axes = [axis for name, axis in layout.items() if name.startswith("yaxis")]
        assert all(axis["range"] == axes[0]["range"] for axis in axes)
        assert [cut["x0"] for cut in layout["shapes"]] == [8] * heads
    third = next(t for t in json.loads(values)["data"] if t["yaxis"] == "y3")
    assert third["y"] == pytest.approx(analysis.values(1, "qk", "aware", 2).tolist())
    mlp_values, *_ = cell_figures(
        analysis, HeatmapCell(1, "mlp", EVERY_HEAD), log=True
    )  # the MLP has no heads
    assert len(names(mlp_values)) == 2


def test_a_ctrl_click_in_the_same_row_adds_or_removes_a_layer(store):
    def press(layer: int, name: str, other_layers: list[int], is_added: bool = True) -> tuple:
        event = click(x=layer, y=name, custom=[layer, name], more=is_added)
        return spectra.click_cell(store, event, [1, "ov"], [-1, "log", other_layers], KEY, *VALUES)

    *_, other_layers, values, _, _ = press(3, "ov", [])
    assert other_layers == [3]
    assert names(values) == ["layer 3", "layer 1"]
    assert "Layer 1 · ov, compared with layers 3 · demo" in json.loads(values)["caption"]
    assert press(3, "ov", [3])[3] == []
    assert press(1, "ov", [3])[3] == [3]  # the selected layer is always drawn
    slot, *_, values, _, _ = press(3, "qk", [2])
    assert slot == [3, "qk"]
    assert names(values) == ["Activation-aware", "Raw weight"]
    assert press(3, "ov", [ALL_LAYERS, 2], is_added=False)[3] == [ALL_LAYERS]


def test_layers_and_heads_can_be_chosen_as_in_the_analysis(store):
    layers = [value for _, value in spectra.list_layers(store, KEY)["choices"]]
    assert layers == [ALL_LAYERS, *range(store.analysis(RECIPE).layers)]
    assert spectra.list_heads(store, [0, "qk"], KEY, [EVERY_HEAD, "log", []])["value"] == EVERY_HEAD


def test_the_axis_of_lost_energy_ends_at_the_lowest_labeled_power():
    lost = [("energy", np.array([0.5, 1e-3, 1e-9, 0.0]))]
    axis = json.loads(curves(Curves("energy lost", lost, is_log=True, is_share=True)))["layout"][
        "yaxis"
    ]
    assert axis["range"][0] == pytest.approx(-6)  # lower values would be labeled "0%"
    values = [("value", np.array([10.0, 1e-4]))]
    wide = json.loads(curves(Curves("value", values, is_log=True)))["layout"]["yaxis"]
    assert wide["ticktext"] == ["0.0001", "0.001", "0.01", "0.1", "1", "10"]


def test_ticks_of_a_short_log_axis_have_complete_labels(store):
    """By default, Plotly labels 50, 20 and 10 as 5, 2 and 10."""
    values = [("value", np.array([60.0, 8.0]))]
    layouts = [json.loads(curves(Curves("value", values, is_log=True)))["layout"]]
    heads = [values + values]
    layouts.append(json.loads(head_grid(heads, Curves("value", [], is_log=True)))["layout"])
    slot = ProbedSlot(0, "qk", 4, 8, 0.5, 0.3, 0.03, 0.001)
    layouts.append(json.loads(against_energy([slot, replace(slot, increase=0.15)]))["layout"])
    for layout, ticks in zip(layouts, ([10, 20, 50], [10, 20, 50], [0.05, 0.1]), strict=True):
        axis = layout["yaxis"]
        labels = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
        assert [labels[tick] for tick in ticks] == [f"{tick:g}" for tick in ticks]
    assert [tick_label(tick) for tick in (5e-5, 1e-6, 2e5)] == [
        "5·10<sup>−5</sup>",
        "10<sup>−6</sup>",
        "2·10<sup>5</sup>",
    ]


def note_of(figure: str) -> dict:
    return json.loads(figure)["layout"]["annotations"][0]


def test_the_label_of_the_current_rank_does_not_overlap_a_curve(store):
    analysis = store.analysis(RECIPE)
    full = len(analysis.values(2, "ov"))
    for rank, anchor in ((2, "bottom"), (full, "top")):
        values, lost, heading = cell_figures(analysis, HeatmapCell(2, "ov", rank=rank), log=True)
        assert {note_of(figure)["yanchor"] for figure in (values, lost)} == {anchor}
        words = "loses 0%" if rank == full else "loses at least"
        assert f"rank {rank} {words}" in note_of(lost)["text"]
        assert note_of(lost)["text"] in heading
