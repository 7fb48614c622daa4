"""What Start will do, the same as a command line, sweeps, layers, widths and bases, the jobs."""

import gradio as gr

from ... import text
from ...page import Page
from ...store import Store
from . import dropping, one_run, sharing, slicing, sweep, table

TITLE = "Compress"


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    run = one_run.layout(page)
    cells = sweep.layout()
    rows = table.layout()
    with gr.Accordion(text.LAYERS_AND_WIDTH, open=False):
        gr.Markdown(text.LAYERS_AND_WIDTH_HELP)
        with gr.Row():
            with gr.Column(min_width=320):
                layers = dropping.layout()
            with gr.Column(min_width=320):
                width = slicing.layout()
            with gr.Column(min_width=320):
                bases = sharing.layout()
    gr.Markdown("### Jobs")
    page.job_list.render()
    one_run.wire(page, store, run, tab)
    sweep.wire(page, store, cells)
    table.wire(page, store, rows)
    dropping.wire(page, store, layers, tab)
    slicing.wire(page, store, width, tab)
    sharing.wire(page, store, bases, tab)
