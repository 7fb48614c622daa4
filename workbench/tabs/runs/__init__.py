"""Runs & export tab: the runs on disk, and a run to inspect, modify and export."""

from functools import partial

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.components import sight
from ...widgets.expert_fold import expert_fold
from ...widgets.on_demand import on_demand
from ...widgets.page import Page
from . import derive, details, exports, runs_table
from .details import Deletion

TITLE = words.compare_and_runs.RUNS_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers.

    The components of a run are built when the tab is first opened.
    """
    table, deletion = runs_table.layout(store), details.deletion()
    opened = sight("runs-tab-sight")
    with gr.Column(visible=False, elem_id="run-details") as column:
        on_demand(opened.tick, partial(build_run, page, store, deletion))
    runs_table.wire(page, store, table)
    runs_table.wire_link(page, store, TITLE)
    details.wire_column(page, store, table, column)
    details.wire_deletion(page, store, deletion)


def build_run(page: Page, store: Store, deletion: Deletion) -> None:
    """Place the components of the opened run and attach their handlers."""
    run = details.layout()
    exported = exports.layout()
    with expert_fold("runs"):
        derived = derive.layout()
        card = details.model_card()
    details.wire(page, store, run, deletion)
    derive.wire(store, derived, page.opened_run)
    exports.wire(page, store, exported, page.opened_run)
    outputs = [*details.outputs(run), *exports.outputs(exported), card]
    details.wire_run(page, store, run, outputs, exported.format)
