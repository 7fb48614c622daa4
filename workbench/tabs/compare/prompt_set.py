"""A set of prompts: the answers of all models as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from ... import heap, markup, run_markup, run_text, text
from ...components import MOST_TOKENS, Slider, Textbox, download, panel, whole
from ...events import QUIET, bind, listen
from ...page import Page
from ...store import Store
from .divergence import marks
from .models import dense_recipe, models

COLUMNS = ["prompt", "model", "answer", "as dense"]
UNFOLDED = 4  # prompts whose marks are seen at once
TIMED = ("seconds", "tokens_per_second")  # of an answer: others compute meanwhile


@dataclass(frozen=True)
class PromptSet:
    """settings: of the sampling; csv: the table as it is downloaded."""

    prompts: gr.Textbox
    settings: list[gr.components.Component]
    answer: gr.Button
    download: gr.Button
    table: gr.Dataframe
    summary: gr.HTML
    csv: gr.State


def layout() -> PromptSet:
    with gr.Accordion("A set of prompts: the answers as a table", open=False):
        prompts = Textbox(
            text.PROMPT, label="Prompts", info="one per line", lines=4, elem_id="prompt-set"
        )
        with gr.Row(elem_classes="bottom"):
            settings = [
                Slider(8, 256, 48, step=8, label=text.NEW_TOKENS, elem_id="set-tokens"),
                Slider(0, 2, 0, step=0.05, label="Temperature", elem_id="set-temperature"),
                Slider(0.05, 1, 1, step=0.05, label="Top-p", elem_id="set-top-p"),
            ]
            answer = gr.Button("Answer all", elem_id="set-go", scale=0, min_width=130)
            save = gr.Button("CSV", elem_id="set-csv", scale=0, min_width=90)
        table = gr.Dataframe(
            headers=COLUMNS,
            interactive=False,
            elem_id="set-table",
            wrap=True,
            column_widths=["20%", "18%", "50%", "12%"],
        )
        summary = panel("set-summary")
        return PromptSet(prompts, settings, answer, save, table, summary, gr.State(""))


def wire(page: Page, store: Store, parts: PromptSet) -> None:
    listen(
        [parts.answer.click],
        bind(answer_all, store),
        [parts.prompts, *parts.settings, page.chosen, *page.form.inputs],
        [parts.table, parts.csv, parts.summary],
        api_visibility="private",
    )
    parts.download.click(bind(download, "answers.csv"), parts.csv, page.downloads, **QUIET)


def answer_all(store: Store, typed: str, *values: Any) -> tuple[pd.DataFrame, str, str]:
    """The answers as a table and as CSV, how many are as dense, and where each of the others leaves
    the dense model's; each run keeps its own.

    typed: one prompt per line; values: new tokens, temperature and top-p, then the chosen runs and
    the form.
    """
    most, temperature, top_p, ids, *form = values
    prompts = [prompt for prompt in typed.split("\n") if prompt.strip()]
    if not prompts:
        raise lrcore.InputError("There are no prompts: write one per line.")
    runs, compared = store.chosen_runs(ids), models(store, ids, form)
    settings = {
        "max_new_tokens": whole(most, text.NEW_TOKENS, MOST_TOKENS),
        "temperature": temperature,
        "top_p": top_p,
        "seed": 0,
    }
    with heap.given_back():
        rows = lrcore.answers(compared, prompts, **settings)
    for row, name in zip(rows, ["dense", *(run.name for run in runs)] * len(prompts), strict=True):
        row["model"] = name
        for figure in TIMED:
            del row[figure]
    for i, run in enumerate(runs, start=1):
        own = [
            {"prompt": row["prompt"], "text": row["answer"], "settings": settings}
            for row in rows[i :: len(compared)]
        ]
        store.runs.add_samples(run.id, own)
    marked = marked_prompts(store, runs, dense_recipe(store, ids, form), prompts, rows)
    summary = markup.note(run_text.agreement(rows)) + marked
    return table(rows), lrcore.answers_csv(rows), summary


def marked_prompts(
    store: Store,
    runs: Sequence[lrcore.Run],
    recipe: lrcore.Recipe,
    prompts: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> str:
    """Each prompt with the answers of the runs, marked where they leave the dense model's.

    recipe: names the dense model; rows: as `lrcore.answers` gives them.
    """
    if not runs:
        return ""
    each, parts = len(runs) + 1, []
    for i, prompt in enumerate(prompts):
        own = rows[i * each : (i + 1) * each]
        said = [prompt + row["answer"] for row in own]
        refused = any(row["error"] for row in own)  # the table says why
        shown = "" if refused else marks(store, runs, recipe, prompt, said)
        if shown:
            unfolded = " open" if i < UNFOLDED else ""
            title = f"<summary>{markup.escape(prompt)}</summary>"
            parts.append(f"<details class='marked'{unfolded}>{title}{shown}</details>")
    return "".join(parts) + (run_markup.scale(run_text.SCALE) if parts else "")


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The rows of lrcore.answers under the names of the page."""
    shown = [
        [
            row["prompt"],
            row["model"],
            row["answer"] or row["error"],
            "same" if row["same_as_first"] else "",
        ]
        for row in rows
    ]
    return pd.DataFrame(shown, columns=COLUMNS)
