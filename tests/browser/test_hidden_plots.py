"""Plots in closed folds or below the screen, drawn when they become visible."""

import json

import pytest

from workbench import words

from .page import QUESTION

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def events_of(workbench):
    """Return the set of events that the page triggers on the server from now on."""
    event_ids = set()

    def record_event(request):
        if QUESTION.search(request.url):
            event_ids.add(json.loads(request.post_data)["fn_index"])

    workbench.page.on("request", record_event)
    return event_ids


def listeners(workbench, *outputs):
    """Return the events that write into these components."""
    return workbench.evaluate(
        """names => {
          const { components, dependencies } = window.gradio_config;
          const ids = components.filter(c => names.includes(c.props.elem_id)).map(c => c.id);
          return dependencies.filter(d => d.backend_fn && d.outputs.some(o => ids.includes(o)))
            .map(d => d.id); }""",
        outputs,
    )


def test_hidden_plots_are_drawn_when_they_become_visible(open_page):
    workbench = open_page(ready=False)
    workbench.allocation()
    folded = {*listeners(workbench, "what-if-sizes", "ranks-table")}
    below = {*listeners(workbench, "policy-curves", "ranking")}
    assert folded
    assert below
    workbench.answered()
    event_ids = events_of(workbench)
    workbench.at_ratio(0.35)
    workbench.answered()
    assert event_ids
    assert not event_ids & (folded | below)
    workbench.open(words.allocation.WHAT_IF)
    sizes = workbench.locator("#what-if-sizes table")
    before = workbench.until(sizes.inner_text, "the sizes are not shown")
    workbench.at_ratio(0.45)
    workbench.until(lambda: sizes.inner_text() != before, "the sizes do not follow")
    workbench.see("#network")
    caption = workbench.locator("#network .plot-head span")
    workbench.until(lambda: "45.0% of" in caption.inner_text(), "the network is not drawn")
    workbench.at_ratio(0.5)  # typed, so the slider is not released
    workbench.until(lambda: "50.0% of" in caption.inner_text(), "the network lags behind")
    workbench.see("#policies")
    workbench.wait_for_plot("policy-curves")
    assert event_ids & below
