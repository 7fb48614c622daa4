"""Events of the selection: clicks in plots and tables."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gradio as gr

from .events import PRESSED, bind
from .page import Page
from .selection import select_clicked, select_row


def select_on_click(
    page: Page, *clicks: Any, settings: Mapping[str, Any] = MappingProxyType(PRESSED)
) -> None:
    """Let a click on a point of a plot select its slot.

    clicks: `select` events of plots. settings: of the listener.
    """
    outputs = [page.selected, page.selection_mark]
    gr.on(list(clicks), bind(select_clicked), page.selected, outputs, **settings)


def select_on_row(
    page: Page,
    table: gr.Dataframe,
    component: str,
    settings: Mapping[str, Any] = MappingProxyType(PRESSED),
) -> None:
    """Let a click on a row of a table select the slot in its columns `layer` and `component`.

    settings: of the listener.
    """
    outputs = [page.selected, page.selection_mark]
    table.select(bind(select_row, component), table, outputs, **settings)
