"""Compress tab: a run with the plan of the Allocation tab, and the jobs."""

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.page import Page
from . import automatic, one_run

TITLE = words.compress.COMPRESS_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    run = one_run.layout(page)
    page.job_list.render()
    one_run.wire(page, store, run)
    automatic.wire(page, store)
