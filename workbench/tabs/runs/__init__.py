"""The runs on disk: open, rename, delete, download, derive, export, push."""

import gradio as gr

from ... import run_text
from ...page import Page
from ...store import Store
from . import derive, details, exports, table

TITLE = run_text.RUNS_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    listed, opened, address = table.layout(store), page.opened_run, page.run_address
    with gr.Column(visible=False, elem_id="run-details") as column:
        run = details.layout()
        derived = derive.layout()
        card = details.model_card()
        exported = exports.layout()
    table.wire(page, store, listed)
    table.wire_link(page, store, TITLE)
    details.wire(page, store, run, opened, address)
    derive.wire(store, derived, opened)
    exports.wire(page, store, exported, opened)
    shown = [column, *details.outputs(run), *exports.outputs(exported), card]
    details.wire_shown(page, store, opened, shown, exported.format)
