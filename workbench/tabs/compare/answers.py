"""Answers to a prompt: a column per model, all written at the same time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from lrcore.evaluation.answers import Answer, stream_answers
from lrcore.runs.runs import Run

from ... import words
from ...base import numbers, process
from ...state.keys import model_key
from ...state.store import Store
from ...widgets.components import MAX_TOKENS, panel, whole_number
from ...widgets.events import DRAWN, QUIET, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.page import MAX_RUNS, Page
from .chosen_runs import dense_recipe, models
from .divergence import NO_ANSWERS, diverge
from .metrics import speeds

FRAME = 0.05  # seconds between two updates of growing answers
COLUMNS = MAX_RUNS + 1  # the first column belongs to the dense model


@dataclass(frozen=True)
class Answers:
    """settings: of the sampling, in the order of the arguments of `generation_settings`."""

    prompt: gr.Textbox
    settings: list[gr.components.Component]
    generate: gr.Button
    stop: gr.Button
    columns: list[gr.Textbox]
    divergence: gr.HTML


def layout() -> Answers:
    """Place the prompt, the sampling settings and the columns."""
    text = words.compare_and_runs
    with gr.Row(elem_classes="bottom"):
        prompt = gr.Textbox(
            words.allocation.PROMPT, label=text.PROMPT, lines=2, elem_id="prompt", scale=4
        )
        start = gr.Button(
            text.GENERATE, variant="primary", elem_id="generate", scale=0, min_width=130
        )
        stop = gr.Button(text.STOP, elem_id="stop-generate", scale=0, min_width=100)
    with gr.Row(elem_classes=EXPERT):
        settings = [
            gr.Slider(8, 512, 96, step=8, label=text.NEW_TOKENS, elem_id="new-tokens"),
            gr.Slider(0, 2, 0, step=0.05, label=text.TEMPERATURE, elem_id="sampling-temperature"),
            gr.Slider(0.05, 1, 1, step=0.05, label=text.TOP_P, elem_id="sampling-top-p"),
            gr.Number(0, precision=0, label=text.SEED, elem_id="sampling-seed", min_width=110),
        ]
    with gr.Row():
        columns = [
            gr.Textbox(
                label="dense",
                lines=9,
                interactive=False,
                elem_id=f"answer-{i}",
                visible=i == 0,
                min_width=220,
                buttons=["copy"],
            )
            for i in range(COLUMNS)
        ]
    return Answers(prompt, settings, start, stop, columns, panel("divergence", value=NO_ANSWERS))


def wire(page: Page, store: Store, parts: Answers, tab: gr.Tab) -> None:
    """Attach the handlers."""
    selected = [page.chosen, *page.form.inputs]
    changed = [page.chosen.change, tab.select]
    listen(changed, bind(lay_out, store), selected, parts.columns, **DRAWN)
    # a speed may have been measured
    results = [page.runs_stamp.change]
    listen(results, bind(name_columns, store), selected, parts.columns, **DRAWN)
    streaming = listen(
        [parts.generate.click],
        bind(generate, store),
        [parts.prompt, *parts.settings, *selected],
        parts.columns,
        **QUIET,
        concurrency_limit=2,
    )
    stopped = parts.stop.click(None, None, None, cancels=[streaming], **QUIET)
    inputs = [parts.prompt, page.chosen, *parts.columns, *page.form.inputs]
    for ended in (streaming, stopped):
        listen(ended, bind(diverge, store), inputs, parts.divergence, **QUIET)


def titles(store: Store, ids: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Return the titles of the columns: each model with the measured speed.

    The speed of the answers themselves would mean little, because other work runs meanwhile.
    """
    runs = store.runs_by_id(ids)
    measured = speeds(store, runs)
    dense_speed = next(
        (measured[run.id]["dense"] for run in same_base(runs) if run.id in measured), None
    )
    dense = f"dense · {dense_recipe(store, ids, values).model}" + speed_text(dense_speed)
    compressed = (run.name + speed_text(measured.get(run.id, {}).get("small")) for run in runs)
    return [dense, *compressed]


def same_base(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the dense model of the first run, which has the first column."""
    return [run for run in runs if model_key(run.recipe) == model_key(runs[0].recipe)]


def speed_text(speed: Mapping[str, Any] | None) -> str:
    """Return the decoding speed for a title; "" if it was not measured."""
    return "" if speed is None else f" · {numbers.speed(speed['decode'])}"


def lay_out(store: Store, ids: list[str], *values: Any) -> list[Any]:
    """Return an empty column for each model."""
    names = titles(store, ids, values)
    return [
        gr.update(label=names[i] if i < len(names) else "", visible=i < len(names), value="")
        for i in range(COLUMNS)
    ]


def name_columns(store: Store, ids: list[str], *values: Any) -> list[Any]:
    """Return the columns with new titles and the same answers."""
    return columns([gr.update(label=name) for name in titles(store, ids, values)])


def generate(store: Store, prompt: str, *values: Any) -> Iterator[list[Any]]:
    """Yield the columns as the answers grow.

    values: new tokens, temperature, top-p and seed, then the selected runs and the form.
    """
    new_tokens, temperature, top_p, seed, ids, *form = values
    yield columns([gr.update(value=prompt, label=name) for name in titles(store, ids, form)])
    settings = generation_settings(new_tokens, temperature, top_p, seed)
    with process.released_memory():
        for answers in frames(stream_answers(models(store, ids, form), prompt, **settings)):
            yield frame(prompt, answers)


def generation_settings(
    new_tokens: float | None, temperature: float, top_p: float, seed: float | None
) -> dict[str, Any]:
    """Return the generation settings by name. Raises InputError for a number out of range."""
    return {
        "max_new_tokens": whole_number(new_tokens, words.compare_and_runs.NEW_TOKENS, MAX_TOKENS),
        "temperature": temperature,
        "top_p": top_p,
        "seed": int(seed or 0),
    }


def frames(stream: Iterator[list[Answer]]) -> Iterator[list[Answer]]:
    """Yield growing answers at most every FRAME seconds, and at the end.

    More frames than the page can draw would delay the page and the Stop button.
    """
    last_frame, answers = time.monotonic(), []
    for answers in stream:
        if time.monotonic() - last_frame >= FRAME:
            yield answers
            last_frame = time.monotonic()
    yield answers


def frame(prompt: str, answers: Sequence[Answer]) -> list[Any]:
    """Return the columns with the answers so far."""
    return columns([gr.update(value=prompt + answer.text) for answer in answers])


def columns(updates: list[Any]) -> list[Any]:
    """Return an update per column; columns without a model do not change."""
    return updates + [gr.skip()] * (COLUMNS - len(updates))
