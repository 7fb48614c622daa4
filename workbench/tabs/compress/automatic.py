"""Buttons under the size: they start a job that ends with the answers of its run."""

from typing import Any

import gradio as gr

from lrcore.system.as_json import json_text

from ... import words
from ...jobs import ShrinkJob, SmallestJob
from ...state.store import Store
from ...widgets.events import QUIET, EventValues, bind, listen
from ...widgets.page import Page, automatic_html
from .job_inputs import inputs, read_and_check

# `numbers.size_left` in the browser, where the label follows each move of the slider
LABEL = "(ratio) => {}.replace('{{}}', +(100 * (1 - ratio)).toPrecision(4) + ' %')"
JOBS = {"compress": ShrinkJob, "find-smallest": SmallestJob}  # by id of the button


def wire(page: Page, store: Store) -> None:
    """Attach the handlers."""
    ratio, values = page.form["ratio"], inputs(page)
    label = LABEL.format(json_text(automatic_html("{}")))
    ratio.change(None, ratio, page.automatic, js=label, **QUIET)
    listen([page.automatic.select], bind(press, store), values, page.tabs, **QUIET)


def press(store: Store, event: gr.EventData, *values: Any) -> gr.Tabs:
    """Queue the compression to the size of the form, or the search for the smallest size, and open
    the tab that lists the jobs.
    """
    pressed = EventValues(event)
    if pressed["action"] not in JOBS:
        raise pressed.unclear("action")
    store.jobs.submit(JOBS[pressed["action"]](*read_and_check(store, values)))
    return gr.Tabs(selected=words.compress.COMPRESS_TAB)
