"""Buttons under the size: they start a job that ends with the answers of its run."""

from typing import Any

import gradio as gr

from ... import words
from ...jobs import ShrinkJob, SmallestJob
from ...state.store import Store
from ...widgets.events import QUIET, bind, listen
from ...widgets.page import Page
from .job_inputs import inputs, read_and_check

# `numbers.size_left` in the browser, where the label follows each move of the slider
LABEL = "(ratio) => '{}'.replace('{{}}', +(100 * (1 - ratio)).toPrecision(4) + ' %')"


def wire(page: Page, store: Store) -> None:
    """Attach the handlers."""
    ratio, values = page.form["ratio"], inputs(page)
    label = LABEL.format(words.compress.COMPRESS_TO)
    ratio.change(None, ratio, page.shrink, js=label, **QUIET)
    listen([page.shrink.click], bind(shrink, store), values, page.tabs, **QUIET)
    listen([page.find_smallest.click], bind(find_smallest, store), values, page.tabs, **QUIET)


def shrink(store: Store, *values: Any) -> gr.Tabs:
    """Queue the compression to the size of the form, and open the tab that lists the jobs."""
    store.jobs.submit(ShrinkJob(*read_and_check(store, values)))
    return gr.Tabs(selected=words.compress.COMPRESS_TAB)


def find_smallest(store: Store, *values: Any) -> gr.Tabs:
    """Queue the search for the smallest size, and open the tab that lists the jobs."""
    store.jobs.submit(SmallestJob(*read_and_check(store, values)))
    return gr.Tabs(selected=words.compress.COMPRESS_TAB)
