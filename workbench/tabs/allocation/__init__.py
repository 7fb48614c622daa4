"""The budget and how it is shared: sliders that redraw while they move, ranks set by hand."""

import gradio as gr

from ...page import Page
from ...store import Store
from . import options, rank_editor
from .layout import layout
from .wiring import wire

TITLE = "Allocation"


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    parts = layout(page)
    wire(page, store, parts)
    with parts.options:
        options.build(page, parts.options)
    rank_editor.wire(page, store, parts.editor, parts.bars)
