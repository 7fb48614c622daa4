"""Answers to a prompt: a column per model, all written at the same time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr

from lrcore.evaluation.answers import Answer, stream_answers
from lrcore.runs.runs import Run

from ... import words
from ...base import numbers, process
from ...base.assets import SharedScript, script
from ...state.keys import Key, model_key
from ...state.store import Store
from ...views import answer_markup
from ...widgets.chosen import chosen
from ...widgets.components import MAX_TOKENS, PRIMARY, button_row, whole_number
from ...widgets.events import DRAWN, QUIET, bind, listen
from ...widgets.expert_fold import EXPERT
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.page import Page
from .chosen_runs import dense_recipe, models
from .divergence import align_answers, dense_answer
from .metrics import speeds

FRAME = 0.05  # seconds between two updates of growing answers


@dataclass(frozen=True)
class Generated:
    """Answers of models to a prompt.

    models: keys of the dense model and of the runs. texts: prompt and answer of each model. marked:
    the same texts as HTML, token by token; () until all answers are complete.
    """

    models: Key = ()
    prompt: str = ""
    texts: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answers:
    """settings: of the sampling, in the order of the arguments of `generation_settings`."""

    prompt: gr.Textbox
    settings: FieldGroup
    buttons: gr.HTML
    columns: gr.HTML
    generated: gr.State


def layout() -> Answers:
    """Place the prompt, the columns and the sampling settings."""
    text = words.compare_and_runs
    with gr.Row(elem_classes="bottom"):
        prompt = gr.Textbox(
            words.allocation.PROMPT, label=text.PROMPT, lines=2, elem_id="prompt", scale=4
        )
        buttons = button_row(
            "answer-buttons",
            {"generate": text.GENERATE, "stop-generate": text.STOP},
            {"generate": PRIMARY},
            {"generate": "submit", "stop-generate": "stop"},
        )
    fields = [
        Field("new-tokens", text.NEW_TOKENS, 96, low=8, high=512, step=8),
        *sampling_fields("sampling"),
        Field("sampling-seed", text.SEED, 0),
    ]
    settings = field_group("sampling", fields, elem_classes=EXPERT)
    copying = SharedScript(script("copy.js", "copy-answer.js"))
    columns = gr.HTML(js_on_load=copying.call, elem_id="answers")
    return Answers(prompt, settings, buttons, columns, gr.State(Generated()))


def sampling_fields(prefix: str) -> list[Field]:
    """Return the fields of temperature and top-p. prefix: of their ids."""
    text = words.compare_and_runs
    return [
        Field(f"{prefix}-temperature", text.TEMPERATURE, 0, low=0, high=2, step=0.05),
        Field(f"{prefix}-top-p", text.TOP_P, 1, low=0.05, high=1, step=0.05),
    ]


def wire(
    page: Page, store: Store, parts: Answers, changed: gr.events.Dependency, headline: gr.HTML
) -> None:
    """Attach the handlers. changed: the selection of runs. headline: as in `runs.wire`."""
    selected = [page.chosen, *page.form.inputs]
    outputs = [parts.columns, parts.generated]
    # with the results of runs, a speed may have been measured
    for events in (changed, [headline.tick]):
        listen(events, bind(draw, store), [parts.generated, *selected], outputs, **DRAWN)
    streaming = listen(
        [parts.buttons.submit],
        bind(generate, store),
        [parts.prompt, parts.settings, *selected],
        outputs,
        **QUIET,
        concurrency_limit=2,
    )
    finished = listen(
        [page.finished_job.change],
        bind(answer_finished, store),
        [page.finished_job, parts.prompt, parts.settings, *page.form.inputs],
        [page.chosen, page.tabs, *outputs],
        **QUIET,
        concurrency_limit=2,
    )
    answered = [parts.generated, *selected]
    stopped = QUIET | {"cancels": [streaming, finished]}
    listen([parts.buttons.stop], bind(mark, store), answered, outputs, **stopped)


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


def compared_models(store: Store, ids: Sequence[str], values: Sequence[Any]) -> Key:
    """Return the keys of the dense model and of the selected runs."""
    runs = (run.id for run in store.runs_by_id(ids))
    return (model_key(dense_recipe(store, ids, values)), *runs)


def columns(column_titles: Sequence[str], generated: Generated) -> tuple[str, Generated]:
    """Return the columns with these titles and answers, and the answers."""
    return answer_markup.columns(column_titles, generated.texts, generated.marked), generated


def draw(store: Store, generated: Generated, ids: list[str], *values: Any) -> tuple[str, Any]:
    """Return the columns of the selected models; answers of other models are dropped."""
    selected, column_titles = compared_models(store, ids, values), titles(store, ids, values)
    if generated.models == selected:
        return columns(column_titles, generated)[0], gr.skip()
    return columns(column_titles, Generated(selected))


def generate(
    store: Store, prompt: str, sampling: Sequence[Any], ids: list[str], *form: Any
) -> Iterator[tuple[str, Generated]]:
    """Yield the columns and the answers as they grow, at last token by token.

    sampling: arguments of `generation_settings`. ids: of the selected runs.
    """
    generated = Generated(compared_models(store, ids, form), prompt)
    column_titles = titles(store, ids, form)
    yield columns(column_titles, replace(generated, texts=(prompt,) * len(column_titles)))
    settings = generation_settings(*sampling)
    with process.released_memory():
        for answers in frames(stream_answers(models(store, ids, form), prompt, **settings)):
            generated = replace(generated, texts=tuple(prompt + a.text for a in answers))
            yield columns(column_titles, generated)
    yield mark(store, generated, ids, *form)


def answer_finished(
    store: Store, job_id: str, prompt: str, sampling: Sequence[Any], *form: Any
) -> Iterator[tuple[Any, ...]]:
    """Open the run of a finished job and yield its answers, once for all pages of a browser.

    Yields the selected runs, the open tab, and the values of `generate`.
    """
    record = store.jobs.get(job_id)
    runs = store.runs_by_id([] if record is None else record.result)
    if record is None or record.was_read or not runs:
        yield (gr.skip(),) * 4
        return
    store.jobs.mark_read(job_id)
    ids = [run.id for run in runs]
    opened = chosen(store, ids), gr.Tabs(selected=words.compare_and_runs.COMPARE_TAB)
    for step in generate(store, prompt, sampling, ids, *form):
        yield (*opened, *step)
        opened = gr.skip(), gr.skip()


def mark(store: Store, generated: Generated, ids: list[str], *values: Any) -> tuple[Any, Any]:
    """Return the columns token by token, marked where they differ from the dense model's."""
    runs, texts = store.runs_by_id(ids), generated.texts
    has_answers = bool(runs and texts) and not {"", generated.prompt} & {*texts}
    if not has_answers or generated.models != compared_models(store, ids, values):
        return gr.skip(), gr.skip()
    recipe = dense_recipe(store, ids, values)
    aligned = align_answers(store, runs, recipe, generated.prompt, texts)
    dense, plain = dense_answer(aligned), [f"<p>{escape(text)}</p>" for text in texts]
    marked = [
        answer_markup.marked(answer) + (text if answer.error else "")
        for answer, text in zip(aligned, plain[1:], strict=True)
    ]
    first = plain[0] if dense is None else answer_markup.answer(dense)
    return columns(titles(store, ids, values), replace(generated, marked=(first, *marked)))


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
