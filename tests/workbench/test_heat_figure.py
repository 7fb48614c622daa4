"""Heatmaps of models with different components per layer."""

import json
import math

import pandas as pd
import pytest

import lrcore
from workbench.figures.spectra import heat_figure

ABOUT = {"kind": "aware", "block_influence": 0.5, "condition": math.inf}


@pytest.fixture(scope="module")
def table():
    """Return a table of two layers: only the first has gate, and the widths of down differ."""
    rows = [(0, "o", 8, 4.0), (0, "gate", 16, 8.0), (0, "down", 16, 12.0)]
    rows += [(1, "o", 8, 2.0), (1, "down", 10, 5.0)]
    columns = ("layer", "name", "full", "effective_rank")
    return pd.DataFrame([dict(zip(columns, row, strict=True)) | ABOUT for row in rows])


def cells_and_texts(figure):
    cells, _, text = json.loads(figure)["data"]
    return cells, dict(zip(zip(text["y"], text["x"], strict=True), text["text"], strict=True))


def test_components_missing_in_a_layer_are_empty_cells(table):
    cells, text = cells_and_texts(heat_figure(table, "effective_rank", "aware"))
    shares = dict(zip(cells["y"], cells["z"], strict=True))
    assert shares == {"o": [0.5, 0.25], "gate": [0.5, None], "down": [0.75, 0.5]}
    assert text == {("o", 0): "4", ("o", 1): "2", ("gate", 0): "8", ("down", 0): "12"} | {
        ("down", 1): "5"
    }
    assert [cell[3] for cell in cells["customdata"][2]] == [16, 10]


def test_a_deep_model_has_few_labels_of_layers(table):
    """Labels that do not fit side by side are turned."""
    deep = pd.concat([table.assign(layer=layer) for layer in range(30)])
    axis = json.loads(heat_figure(deep, "effective_rank", "aware"))["layout"]["xaxis"]
    assert 30 / axis["dtick"] <= 16


def test_infinite_values_are_labeled_as_infinity(table):
    cells, text = cells_and_texts(heat_figure(table, "condition", "aware"))
    assert set(text.values()) == {"∞"}
    assert ("gate", 1) not in text
    assert cells["customdata"][0][0][2] is None  # JSON has no infinity


def test_the_heatmap_has_a_label_for_each_cell_of_a_model_with_experts(
    tmp_path, tiny_llama, story_file
):
    from tiny_models import family_folder

    folder = family_folder("deepseek_v3", tiny_llama, tmp_path / "model")
    model = lrcore.load(str(folder))
    recipe = lrcore.Recipe(str(folder), data=str(story_file), samples=4, seq_len=16)
    analysis = lrcore.analyze(model, lrcore.calibrate(model, recipe))
    for kind in ("aware", "raw"):
        cells, text = cells_and_texts(
            heat_figure(analysis.table(0.9), "effective_rank", kind, analysis.components)
        )
        assert len(text) == len(analysis.table(0.9).query(f"kind == '{kind}'"))
        assert {"kv_a", "kv_b", "down"} <= set(cells["y"])


def test_groups_of_rows_have_centered_titles(table):
    components = pd.DataFrame(
        [{"layer": layer, "name": "mlp", "full": 8, "effective_rank": 2.0} for layer in (0, 1)]
    ).assign(**ABOUT)
    figure = json.loads(
        heat_figure(pd.concat([components, table]), "effective_rank", "aware", ["mlp"])
    )
    assert figure["data"][0]["y"] == ["mlp", " ", "o", "gate", "down"]
    titles = [(title["text"], title["y"]) for title in figure["layout"]["annotations"]]
    assert titles == [("Joint", 0), ("Matrices", 3)]
    alone = json.loads(heat_figure(table, "effective_rank", "aware"))
    assert "annotations" not in alone["layout"]
