"""Compare tab: answers, metrics, losses and recipes of runs and their dense models."""

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.components import panel
from ...widgets.events import together
from ...widgets.expert_fold import expert_fold
from ...widgets.page import Page
from . import answers, chat, prompt_set, report, runs, token_losses

TITLE = words.compare_and_runs.COMPARE_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    page.chosen.render()
    conversations = chat.layout()
    columns = answers.layout()
    headline = panel("headline", changes=("runs", "plan"))
    with expert_fold("compare", headline):
        comparison = runs.layout()
        prompts = prompt_set.layout()
        passage = token_losses.layout()
        differences = runs.differences_layout()
    runs.wire(page, store, headline, comparison, differences)
    changed = together([page.chosen.change, tab.select])
    chat.wire(page, store, conversations, columns.settings, changed)
    answers.wire(page, store, columns, changed, headline)
    prompt_set.wire(page, store, prompts)
    token_losses.wire(page, store, passage)
    texts = [conversations.conversations, prompts.csv, columns.generated]
    inputs = [comparison.protocol, columns.settings, *texts]
    report.wire(page, store, headline, inputs)
