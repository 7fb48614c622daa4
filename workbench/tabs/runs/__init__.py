"""The runs on disk: open, rename, delete, download, derive, export, push."""

import gradio as gr

from ...page import Page
from ...selection import run_in_address
from ...store import Store
from . import derive, details, exports, table

TITLE = "Runs & export"


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    listed = table.layout()
    opened, address = gr.State(""), run_in_address()  # the id of the run on show
    with gr.Column(visible=False, elem_id="run-details") as column:
        run = details.layout()
        derived = derive.layout()
        card = details.model_card()
        exported = exports.layout()
    table.wire(page, store, listed, opened, address)
    table.wire_link(page, store, opened, TITLE)
    details.wire(page, store, run, opened, address)
    derive.wire(store, derived, opened)
    exports.wire(page, store, exported, opened)
    shown = [column, *details.outputs(run), *exports.outputs(exported), card]
    details.wire_shown(page, store, opened, shown)
