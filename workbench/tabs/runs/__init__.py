"""Runs & export tab: the runs on disk, and a run to inspect, modify and export."""

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.expert_fold import expert_fold
from ...widgets.page import Page
from . import derive, details, exports, runs_table

TITLE = words.compare_and_runs.RUNS_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    table, opened = runs_table.layout(store), page.opened_run
    undo = details.undo_button()
    with gr.Column(visible=False, elem_id="run-details") as column:
        run = details.layout()
        exported = exports.layout()
        with expert_fold("runs", run.heading):
            derived = derive.layout()
            card = details.model_card()
    runs_table.wire(page, store, table)
    runs_table.wire_link(page, store, TITLE)
    details.wire(page, store, run, undo)
    derive.wire(store, derived, opened)
    exports.wire(page, store, exported, opened)
    outputs = [column, *details.outputs(run), *exports.outputs(exported), card]
    details.wire_run(page, store, table, outputs, exported.format)
