"""What the models answer to one prompt: one column per model, written at the same time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import heap, numbers, text
from ...components import MOST_TOKENS, Number, Slider, Textbox, panel, whole
from ...events import DRAWN, QUIET, bind, listen
from ...keys import model_key
from ...page import MOST_RUNS, Page
from ...store import Store
from .details import speeds
from .divergence import NOTHING_YET, diverge
from .models import dense_recipe, models

FRAME = 0.05  # seconds between two states of answers that grow
COLUMNS = MOST_RUNS + 1  # the dense model has the first


@dataclass(frozen=True)
class Answers:
    """settings: of the sampling, in the order `generate` takes them."""

    prompt: gr.Textbox
    settings: list[gr.components.Component]
    generate: gr.Button
    stop: gr.Button
    columns: list[gr.Textbox]
    divergence: gr.HTML


def layout() -> Answers:
    gr.Markdown("### Answers")
    with gr.Row(elem_classes="bottom"):
        prompt = Textbox(text.PROMPT, label="Prompt", lines=2, elem_id="prompt", scale=4)
        go = gr.Button("Generate", variant="primary", elem_id="generate", scale=0, min_width=130)
        stop = gr.Button("Stop", elem_id="stop-generate", scale=0, min_width=100)
    with gr.Row():
        settings = [
            Slider(8, 512, 96, step=8, label=text.NEW_TOKENS, elem_id="new-tokens"),
            Slider(0, 2, 0, step=0.05, label=text.TEMPERATURE, elem_id="sampling-temperature"),
            Slider(0.05, 1, 1, step=0.05, label="Top-p", elem_id="sampling-top-p"),
            Number(0, precision=0, label="Seed", elem_id="sampling-seed", min_width=110),
        ]
    with gr.Row():
        columns = [
            Textbox(
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
    return Answers(prompt, settings, go, stop, columns, panel("divergence", value=NOTHING_YET))


def wire(page: Page, store: Store, parts: Answers, tab: gr.Tab) -> None:
    chosen = [page.chosen, *page.form.inputs]
    shown = [page.chosen.change, tab.select]
    listen(shown, bind(lay_out, store), chosen, parts.columns, **DRAWN)
    measured = [page.runs_stamp.change]  # a speed, say
    listen(measured, bind(name_columns, store), chosen, parts.columns, **DRAWN)
    streaming = listen(
        [parts.generate.click],
        bind(generate, store),
        [parts.prompt, *parts.settings, *chosen],
        parts.columns,
        **QUIET,
        concurrency_limit=2,
    )
    stopped = parts.stop.click(None, None, None, cancels=[streaming], **QUIET)
    inputs = [parts.prompt, page.chosen, *parts.columns, *page.form.inputs]
    for ended in (streaming, stopped):
        listen(ended, bind(diverge, store), inputs, parts.divergence, **QUIET)


def titles(store: Store, ids: Sequence[str], values: Sequence[Any]) -> list[str]:
    """What stands above the columns: each model, and its speed where that was measured in turns
    with the dense model. What an answer takes here says little: others compute meanwhile.
    """
    runs = store.chosen_runs(ids)
    known = speeds(store, runs)
    first = next((known[run.id]["dense"] for run in same_base(runs) if run.id in known), None)
    dense = f"dense · {dense_recipe(store, ids, values).model}" + decoded(first)
    own = (run.name + decoded(known.get(run.id, {}).get("small")) for run in runs)
    return [dense, *own]


def same_base(runs: Sequence[lrcore.Run]) -> list[lrcore.Run]:
    """Those of the first run's dense model, whose answer has the first column."""
    return [run for run in runs if model_key(run.recipe) == model_key(runs[0].recipe)]


def decoded(speed: Mapping[str, Any] | None) -> str:
    return "" if speed is None else f" · {numbers.speed(speed['decode'])}"


def lay_out(store: Store, ids: list[str], *values: Any) -> list[Any]:
    """One empty column per model."""
    names = titles(store, ids, values)
    return [
        gr.update(label=names[i] if i < len(names) else "", visible=i < len(names), value="")
        for i in range(COLUMNS)
    ]


def name_columns(store: Store, ids: list[str], *values: Any) -> list[Any]:
    """The titles alone: answers stay."""
    return columns([gr.update(label=name) for name in titles(store, ids, values)])


def generate(store: Store, prompt: str, *values: Any) -> Iterator[list[Any]]:
    """The columns as the answers grow.

    values: new tokens, temperature, top-p and seed, then the chosen runs and the form.
    """
    most, temperature, top_p, seed, ids, *form = values
    yield columns([gr.update(value=prompt, label=name) for name in titles(store, ids, form)])
    settings = {
        "max_new_tokens": whole(most, text.NEW_TOKENS, MOST_TOKENS),
        "temperature": temperature,
        "top_p": top_p,
        "seed": int(seed or 0),
    }
    shown, answers = time.monotonic(), []
    with heap.given_back():
        for answers in lrcore.in_turns(models(store, ids, form), prompt, **settings):
            # a page that is sent more than it can draw falls behind, and Stop with it
            if time.monotonic() - shown >= FRAME:
                yield frame(prompt, answers)
                shown = time.monotonic()
    yield frame(prompt, answers)


def frame(prompt: str, answers: Sequence[Any]) -> list[Any]:
    """The columns with what each model has added so far."""
    return columns([gr.update(value=prompt + one.text) for one in answers])


def columns(own: list[Any]) -> list[Any]:
    """One update per column; those of no model stay as they are."""
    return own + [gr.skip()] * (COLUMNS - len(own))
