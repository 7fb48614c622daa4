"""A change to a model without the selected layer or component."""

from types import SimpleNamespace

import pytest
from tiny_models import family_folder

import lrcore
from workbench import words
from workbench.jobs import AnalyzeJob
from workbench.state.keys import calibration_key
from workbench.state.store import Store
from workbench.tabs import spectra
from workbench.widgets import selection
from workbench.widgets.form import input_values

CONTROLS = [-1, "log", []]


@pytest.fixture(scope="module")
def experts(tmp_path_factory, tiny_llama, story_file):
    """Return store, recipe, key and analysis of a model with different layers and no joint
    attention components.
    """
    root = tmp_path_factory.mktemp("experts")
    folder = family_folder("deepseek_v3", tiny_llama, root / "model")
    recipe = lrcore.Recipe(
        str(folder), data=str(story_file), samples=4, seq_len=16, method="svd_llm"
    )
    store = Store(root / "runs")
    return store, recipe, list(calibration_key(recipe)), store.analysis(recipe)


@pytest.mark.parametrize(
    ("selected", "expected"),
    [([0, "qk"], [0, "mlp"]), ([1, "down"], [1, "q_b"]), ([9, "o"], [1, "o"]), ([1, "o"], None)],
)
def test_the_nearest_existing_cell_is_selected(experts, selected, expected):
    store, _, key, analysis = experts
    slot, mark = spectra.reselect(store, selected, key)
    if expected is None:
        assert "value" not in slot
    else:
        names_of_layer = {name for layer, name, _ in analysis.spectra if layer == slot[0]}
        assert slot[0] == expected[0]
        assert slot[1] in names_of_layer
        assert selection.mark_value(slot, False) == mark


def test_an_analysis_lists_the_components_of_its_layers(experts):
    analysis = experts[3]
    assert repr(analysis) == "Analysis(2 layers; mlp, q_a, q_b, kv_a, kv_b, o, gate, up, down)"
    assert analysis.matrices == ("q_a", "q_b", "kv_a", "kv_b", "o", "gate", "up", "down")


@pytest.mark.parametrize("selected", [[0, "qk"], [1, "down"], [9, "o"]])
def test_the_nearest_existing_cell_is_drawn(experts, selected):
    store, recipe, key, analysis = experts
    values, energy, heading = spectra.draw_cell(
        store, selected, CONTROLS, key, *input_values(recipe)
    )
    layer, name = selection.nearest(analysis, selected)
    assert f"data-layer='{layer}' data-name='{name}'" in heading
    assert values
    assert energy
    heads = spectra.list_heads(store, selected, key, CONTROLS)
    assert len(heads["choices"]) == 1


def test_a_job_of_a_different_model_is_not_announced(tmp_path, monkeypatch):
    store, recipe = Store(tmp_path), lrcore.Recipe(samples=4, seq_len=32)
    waits = SimpleNamespace(job=AnalyzeJob(recipe))
    monkeypatch.setattr(store.jobs, "waiting", lambda: [waits])
    assert store.waiting_jobs(recipe.with_(ratio=0.4)) == [waits]
    assert store.waiting_jobs(recipe.with_(model="demo-opt")) == []
    assert store.waiting_jobs(None) == []
    controls = ["effective_rank", 0.9, "aware"]
    for model, sentence in (
        ("demo-llama", words.spectra.WORKING),
        ("demo-opt", words.spectra.NOT_ANALYZED),
    ):
        values = input_values(recipe.with_(model=model))
        assert sentence in spectra.draw_heatmap(store, controls, None, *values)[2]
