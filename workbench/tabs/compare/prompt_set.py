"""Answers to a set of prompts, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
import pandas as pd

import lrcore
from lrcore.evaluation.answers import answer_prompts, answers_csv
from lrcore.runs.runs import Run

from ... import words
from ...base import process
from ...state.store import Store
from ...views import answer_markup, markup
from ...widgets.components import MAX_TOKENS, button_row_html, download, panel, whole_number
from ...widgets.events import QUIET, bind, listen
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.page import Page
from .answers import sampling_fields
from .chosen_runs import dense_recipe, models
from .divergence import align_answers

COLUMNS = ["prompt", "model", "answer", "as dense"]
UNFOLDED = 4  # prompts whose marked answers are unfolded initially
TIMINGS = ("seconds", "tokens_per_second")  # not shown: other work runs meanwhile


@dataclass(frozen=True)
class PromptSet:
    """settings: of the sampling, with the button that starts. summary: with the button that saves
    the table. csv: the table as text.
    """

    prompts: gr.Textbox
    settings: FieldGroup
    table: gr.Dataframe
    summary: gr.HTML
    csv: gr.State


def layout() -> PromptSet:
    """Place the prompts, the sampling settings and the table."""
    text = words.compare_and_runs
    with gr.Accordion(text.PROMPT_SET, open=False):
        prompts = gr.Textbox(
            words.allocation.PROMPT,
            label=text.PROMPTS,
            info=text.PROMPTS_INFO,
            lines=4,
            elem_id="prompt-set",
        )
        fields = [
            Field("set-tokens", text.NEW_TOKENS, 48, low=8, high=256, step=8),
            *sampling_fields("set"),
        ]
        settings = field_group("set-sampling", fields, ("set-go", text.ANSWER_ALL))
        table = gr.Dataframe(
            headers=COLUMNS,
            interactive=False,
            elem_id="set-table",
            wrap=True,
            column_widths=["20%", "18%", "50%", "12%"],
        )
        summary = panel("set-summary")
        return PromptSet(prompts, settings, table, summary, gr.State(""))


def wire(page: Page, store: Store, parts: PromptSet) -> None:
    """Attach the handlers."""
    listen(
        [parts.settings.value.submit],
        bind(answer_all, store),
        [parts.prompts, parts.settings, page.chosen, *page.form.inputs],
        [parts.table, parts.csv, parts.summary],
        api_visibility="private",
    )
    parts.summary.select(bind(download, "answers.csv"), parts.csv, page.downloads, **QUIET)


def answer_all(
    store: Store, typed: str, sampling: Sequence[Any], ids: list[str], *form: Any
) -> tuple[pd.DataFrame, str, str]:
    """Return the answers as a table, as CSV, and marked; store the answers of each run.

    typed: one prompt per line. sampling: new tokens, temperature and top-p. ids: of the selected
    runs.
    """
    new_tokens, temperature, top_p = sampling
    prompts = [prompt for prompt in typed.split("\n") if prompt.strip()]
    if not prompts:
        raise lrcore.InputError(words.compare_and_runs.NO_PROMPTS)
    runs, compared = store.runs_by_id(ids), models(store, ids, form)
    settings = {
        "max_new_tokens": whole_number(new_tokens, words.compare_and_runs.NEW_TOKENS, MAX_TOKENS),
        "temperature": temperature,
        "top_p": top_p,
        "seed": 0,
    }
    with process.released_memory():
        rows = answer_prompts(compared, prompts, **settings)
    for row, name in zip(rows, ["dense", *(run.name for run in runs)] * len(prompts), strict=True):
        row["model"] = name
        for timing in TIMINGS:
            del row[timing]
    for i, run in enumerate(runs, start=1):
        samples = [
            {"prompt": row["prompt"], "text": row["answer"], "settings": settings}
            for row in rows[i :: len(compared)]
        ]
        store.runs.add_samples(run.id, samples)
    marked = marked_prompts(store, runs, dense_recipe(store, ids, form), prompts, rows)
    summary = (
        button_row_html({"set-csv": "CSV"}) + markup.note(answer_markup.agreement(rows)) + marked
    )
    return answer_table(rows), answers_csv(rows), summary


def marked_prompts(
    store: Store,
    runs: Sequence[Run],
    recipe: lrcore.Recipe,
    prompts: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> str:
    """Return the marked answers of the runs to each prompt.

    recipe: names the dense model. rows: as `answer_prompts` returns them.
    """
    if not runs:
        return ""
    model_count, parts = len(runs) + 1, []
    for i, prompt in enumerate(prompts):
        prompt_rows = rows[i * model_count : (i + 1) * model_count]
        texts = [prompt + row["answer"] for row in prompt_rows]
        if any(row["error"] for row in prompt_rows):  # the table has the message
            continue
        aligned = align_answers(store, runs, recipe, prompt, texts)
        marked = "".join(
            f"<h4>{escape(run.name)}</h4>{answer_markup.marked(answer)}"
            for run, answer in zip(runs, aligned, strict=True)
        )
        unfolded = " open" if i < UNFOLDED else ""
        title = f"<summary>{escape(prompt)}</summary>"
        parts.append(f"<details class='marked'{unfolded}>{title}{marked}</details>")
    scale = answer_markup.scale(words.compare_and_runs.ANSWER_SCALE) if parts else ""
    return "".join(parts) + scale


def answer_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows of `answer_prompts` in COLUMNS."""
    cells = [
        [
            row["prompt"],
            row["model"],
            row["answer"] or row["error"],
            "same" if row["same_as_first"] else "",
        ]
        for row in rows
    ]
    return pd.DataFrame(cells, columns=COLUMNS)
