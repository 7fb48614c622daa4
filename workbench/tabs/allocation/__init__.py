"""Allocation tab: the budget, the policy that distributes it, and ranks set manually."""

import gradio as gr

from ...state.store import Store
from ...widgets.page import Page
from . import options, rank_editor
from .layout import layout
from .wiring import wire

TITLE = "Allocation"


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    parts = layout(page)
    wire(page, store, parts)
    options.wire(page, parts.options)
    rank_editor.wire(page, store, parts.editor, parts.bars, parts.link)
