"""Experiments tab: sweeps, tables of papers, and ways to a smaller model without ranks."""

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.page import Page
from . import paper_table, pruning, reduction, sharing, slicing, sweep

TITLE = words.compress.EXPERIMENTS_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    gr.Markdown(words.compress.EXPERIMENTS_HELP)
    sweep_controls = sweep.layout()
    table = paper_table.layout()
    with gr.Accordion(words.compress.REDUCE, open=False, elem_id="reduce"):
        reductions = (pruning.layout(), slicing.layout(), sharing.layout())
    sweep.wire(page, store, sweep_controls)
    paper_table.wire(page, store, table)
    reduction.wire(page, store, reductions, tab)
