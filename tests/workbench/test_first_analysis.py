"""The analysis included with the page, displayed without a job."""

import json

import pytest
import torch

import lrcore
from lrcore.compression.analyze import Analysis
from workbench import build_app
from workbench.state.keys import DEFAULTS, calibration_key
from workbench.state.store import FIRST_ANALYSIS, Store
from workbench.tabs import spectra


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return build_app(Store(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def values(page):
    """Return the initial values of the components by their element id."""
    parts = [part["props"] for part in page.config["components"]]
    return {part["elem_id"]: part.get("value") for part in parts if part.get("elem_id")}


def test_heatmap_and_curves_are_displayed_before_any_listener_runs(values):
    shipped = Analysis.read(FIRST_ANALYSIS)
    heat = json.loads(values["heatmap"])["data"][0]
    assert len(heat["x"]) == shipped.layers
    assert {*heat["y"]} >= {*shipped.components, *shipped.matrices}
    for plot in ("spectrum", "energy"):
        assert len(json.loads(values[plot])["data"]) >= 2
    assert "Layer 0" in values["cell-heading"]
    assert "does not allocate" not in values["cell-heading"]  # no plan exists
    assert len(values["spectra-table"]["data"]) == len(shipped.spectra)


def test_the_included_analysis_is_of_the_default_recipe(tmp_path):
    store = Store(tmp_path)
    assert tuple(store.add_first_analysis()) == calibration_key(DEFAULTS)
    shipped = store.analysis_by_key(calibration_key(DEFAULTS))
    assert shipped.protocol["samples"] == DEFAULTS.samples
    assert shipped.protocol["seq_len"] == DEFAULTS.seq_len
    assert shipped.protocol["source"].startswith(DEFAULTS.data)
    # the spectra of the weights do not depend on the text
    layer = lrcore.load(DEFAULTS.model).network.model.layers[3]
    for name, module in (("o", layer.self_attn.o_proj), ("down", layer.mlp.down_proj)):
        values = torch.linalg.svdvals(module.weight.detach().double())
        assert values.numpy() == pytest.approx(shipped.values(3, name, "raw"), rel=1e-6, abs=1e-9)


def test_an_existing_analysis_is_not_replaced(tmp_path):
    store = Store(tmp_path)
    existing = Analysis({}, [], {}, 0)
    store.objects.put("analysis", calibration_key(DEFAULTS), existing)
    store.add_first_analysis()
    assert store.analysis_by_key(calibration_key(DEFAULTS)) is existing


def test_the_initial_controls_match_the_figures(values):
    assert spectra.MEASURE[0] == values["measure"]
    assert values["head"] == spectra.CELL[0]
    assert values["scale"] == spectra.CELL[1]


def test_every_dropdown_of_the_page_has_a_label(page):
    """A handler that returns a dropdown must not add it to the page."""
    lists = [part["props"] for part in page.config["components"] if part["type"] == "dropdown"]
    assert [properties for properties in lists if not properties.get("label")] == []
