"""Events of the selection: clicks in plots and tables."""

from typing import Any

import gradio as gr

from .events import PRESSED, bind
from .page import Page
from .selection import select_clicked, select_row


def select_on_click(page: Page, *clicks: Any) -> None:
    """Let a click on a point of a plot select its slot; clicks: `select` events of plots."""
    outputs = [page.selected, page.selection_mark]
    gr.on(list(clicks), bind(select_clicked), page.selected, outputs, **PRESSED)


def select_on_row(page: Page, table: gr.Dataframe, component: str) -> None:
    """Let a click on a row of a table select the slot in its columns `layer` and `component`."""
    outputs = [page.selected, page.selection_mark]
    table.select(bind(select_row, component), table, outputs, **PRESSED)
