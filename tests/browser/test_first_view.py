"""The page before the first answer of the server."""

import numpy as np
import pytest

from lrcore.compression.analyze import Analysis
from workbench.state.store import FIRST_ANALYSIS

pytestmark = pytest.mark.browser
# Counts the frames of the page until each plot is drawn for the first time.
COUNT_FRAMES = """
  window.framesBefore = {};
  let frames = 0;
  const count = () => {
    frames += 1;
    if (!window.framesBefore.energy) requestAnimationFrame(count);
  };
  count();
  new MutationObserver((changes) => changes.forEach(({ target }) => {
    const plot = target.closest('#heatmap, #spectrum, #energy');
    if (plot) window.framesBefore[plot.id] ??= frames;
  })).observe(document, { subtree: true, attributeFilter: ['data-drawn'] });
"""


def test_the_heatmap_is_drawn_before_the_first_answer_of_the_server(open_page):
    workbench = open_page(ready=False, hold=lambda route: None)
    workbench.analyzed()
    for plot in ("spectrum", "energy"):
        workbench.wait_for_plot(plot)
    shipped = Analysis.read(FIRST_ANALYSIS)
    [cells] = [
        trace for trace in workbench.plot("heatmap")["traces"] if "Effective" in trace["hover"]
    ]
    assert len(cells["y"]) >= len((*shipped.components, *shipped.matrices))
    assert "done" not in workbench.status()["text"]


def test_the_heatmap_is_on_the_screen_before_the_curves_are_drawn(open_page):
    workbench = open_page(ready=False)
    workbench.page.add_init_script(COUNT_FRAMES)
    workbench.page.reload()
    for plot in ("heatmap", "spectrum", "energy"):
        workbench.wait_for_plot(plot)
    frames = workbench.evaluate("window.framesBefore")
    assert frames["heatmap"] < frames["spectrum"] < frames["energy"]


def test_the_shipped_analysis_equals_a_computed_one(cache):
    shipped = Analysis.read(FIRST_ANALYSIS)
    made = Analysis.read(cache.parent / "analysis.safetensors")
    assert shipped.protocol == made.protocol
    assert np.allclose(shipped.block_influence, made.block_influence, rtol=1e-3)
    assert list(shipped.spectra) == list(made.spectra)
    for slot, values in made.spectra.items():
        largest = float(values.max())
        assert np.allclose(shipped.spectra[slot], values, rtol=1e-3, atol=1e-5 * largest), slot


def test_the_shipped_probes_suffice_for_policy_probed_on_the_demo(open_page, cache):
    assert float((cache.parent / "calibrated").read_text()) == 0  # no tokens to run
    workbench = open_page()
    workbench.allocation()
    workbench.choose("field-policy", "probed")
    workbench.until(
        lambda: (
            "a3, probed" in [trace["name"] for trace in workbench.plot("budget-curve")["traces"]]
        ),
        "the plan of policy probed is not drawn",
    )
    widths = [rank for (name, _), rank in workbench.ranks().items() if name == "mlp"]
    assert max(widths) > 1.2 * min(widths)


def test_the_initial_plan_has_a_prediction_and_a_curve(open_page):
    workbench = open_page()
    workbench.allocation()
    workbench.wait_for_plot("budget-curve")
    names = [trace["name"] for trace in workbench.plot("budget-curve")["traces"]]
    assert {"a3, uniform", "this plan"} <= {*names}


def test_a_link_opens_the_list_of_endpoints(open_page):
    workbench = open_page("?view=api", ready=False)
    workbench.locator(".api-docs", has_text="analyze").wait_for()
    assert "view=api" in workbench.page.url
