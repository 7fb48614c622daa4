"""Compress tab: runs, sweeps, tables of papers, other ways to a smaller model, and jobs."""

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.page import Page
from . import one_run, paper_table, pruning, sharing, slicing, sweep

TITLE = "Compress"


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    run = one_run.layout(page)
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
    gr.Markdown(f"### {words.compress.JOBS}")
    page.job_list.render()
    one_run.wire(page, store, run, tab)
    sweep.wire(page, store, sweep_controls)
    paper_table.wire(page, store, table)
    pruning.wire(page, store, layers, tab)
    slicing.wire(page, store, width, tab)
    sharing.wire(page, store, bases, tab)
