"""Compare tab: answers, metrics, losses and recipes of runs and their dense models."""

from functools import partial

import gradio as gr

from ... import words
from ...state.store import Store
from ...widgets.components import panel, sight
from ...widgets.events import together
from ...widgets.expert_fold import expert_fold
from ...widgets.on_demand import on_demand
from ...widgets.page import Page
from . import answers, chat, prompt_set, report, runs, token_losses

TITLE = words.compare_and_runs.COMPARE_TAB


def build(page: Page, store: Store, tab: gr.Tab) -> None:
    """Place the components of the tab and attach their handlers."""
    page.chosen.render()
    conversations = chat.layout()
    columns = answers.layout()
    headline = panel("headline", changes=("runs",))
    report_button = report.layout()
    with expert_fold("compare"):
        comparison = runs.layout()
        answers_csv = gr.State("")
        on_demand(sight("compare-sight").tick, partial(build_more, page, store, answers_csv))
        differences = runs.differences_layout()
    runs.wire(page, store, headline, comparison, differences)
    changed = together([page.chosen.change, tab.select])
    chat.wire(page, store, conversations, columns.settings, changed)
    answers.wire(page, store, columns, changed, headline)
    texts = [conversations.conversations, answers_csv, columns.generated]
    inputs = [comparison.protocol, columns.settings, *texts]
    report.wire(page, store, report_button, inputs)


def build_more(page: Page, store: Store, answers_csv: gr.State) -> None:
    """Place the set of prompts and the loss of each token, when the expert settings first open.

    answers_csv: the answers to the set of prompts.
    """
    prompts = prompt_set.layout(answers_csv)
    passage = token_losses.layout()
    prompt_set.wire(page, store, prompts)
    token_losses.wire(page, store, passage)
