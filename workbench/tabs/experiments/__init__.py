"""Experiments tab: sweeps, tables of papers, and ways to a smaller model without ranks."""

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.page import Page
from . import paper_table, pruning, sharing, slicing, sweep

TITLE = words.compress.EXPERIMENTS_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    gr.Markdown(words.compress.EXPERIMENTS_HELP)
    sweep_controls = sweep.layout()
    table = paper_table.layout()
    with gr.Accordion(words.compress.REDUCE, open=False):
        gr.Markdown(words.compress.REDUCE_HELP)
        with gr.Row():
            with gr.Column(min_width=320):
                layers = pruning.layout()
            with gr.Column(min_width=320):
                width = slicing.layout()
            with gr.Column(min_width=320):
                bases = sharing.layout()
    sweep.wire(page, store, sweep_controls)
    paper_table.wire(page, store, table)
    pruning.wire(page, store, layers, tab)
    slicing.wire(page, store, width, tab)
    sharing.wire(page, store, bases, tab)
