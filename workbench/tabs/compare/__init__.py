"""Runs beside each other and beside the dense model: figures, answers, losses, recipes."""

import gradio as gr

from ... import run_text
from ...page import Page
from ...store import Store
from . import answers, prompt_set, runs, token_losses

TITLE = run_text.COMPARE_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    choice = runs.layout(page)
    columns = answers.layout()
    prompts = prompt_set.layout()
    passage = token_losses.layout()
    differences = runs.differences_layout()
    runs.wire(page, store, choice, differences)
    answers.wire(page, store, columns, tab)
    prompt_set.wire(page, store, prompts)
    token_losses.wire(page, store, passage)
