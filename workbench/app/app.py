"""The page: a `Store` (models, runs, jobs; no Gradio) and a `Page` (components)."""

import threading
from contextlib import suppress

import gradio as gr

from lrcore.runs.runs import runs_folder

from .. import words
from ..base import process
from ..base.assets import script
from ..jobs import KINDS
from ..server.gradio_patches import CheckedBlocks, limit_queue
from ..state.store import Store
from ..tabs import TABS
from ..widgets import polling, sidebar
from ..widgets.events import QUIET, present_browser
from ..widgets.page import Page
from . import api

# Seconds that the start of the page waits until all runs are read; 10,000 runs take half as long.
READ_TIMEOUT = 3.0


def build_app(store: Store | None = None) -> gr.Blocks:
    """Return the page. store: a new one by default."""
    process.limit_arenas()
    if store is None:
        store = Store(runs_folder(), KINDS, present_browser)
        store.runs.empty_trash()  # no page is open that could restore a run
        reader = threading.Thread(target=read_runs, args=(store,), daemon=True)
        reader.start()
        reader.join(READ_TIMEOUT)
    title = words.spectra.APP_NAME
    with CheckedBlocks(title=title, analytics_enabled=False, fill_width=True) as blocks:
        titles = tuple(tab.TITLE for tab in TABS)
        page = Page(blocks.load, titles, analysis_key=gr.State(store.add_first_analysis()))
        with gr.Sidebar(width=330, elem_id="sidebar"):
            sidebar.build(page, store)
        page.tabs.render()
        with page.tabs:
            for tab in TABS:
                with gr.Tab(tab.TITLE, id=tab.TITLE) as container:
                    tab.build(page, store, container)
        polling.wire(page, store)
        api.build(store)
        blocks.load(None, None, None, js=script("opened-page.js"), **QUIET)
    limit_queue(blocks)
    return blocks


def read_runs(store: Store) -> None:
    """Read the history of every run. With thousands of runs this takes seconds."""
    # The first request that reads the runs raises the same error, with a message on the page.
    with process.permanent_objects(), suppress(Exception):
        store.runs.all()
