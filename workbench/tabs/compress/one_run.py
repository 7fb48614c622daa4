"""One run by the form's recipe: what Start will do, the same as a command line, Start."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import markup, memory, text
from ...components import Textbox
from ...events import DRAWN, QUIET, bind, listen
from ...jobs import CompressJob
from ...page import Page
from ...store import Store
from .reading import inputs, read, read_and_check, run_name


@dataclass(frozen=True)
class OneRun:
    description: gr.Markdown
    command: gr.Code
    name: gr.Textbox
    start: gr.Button


def layout(page: Page) -> OneRun:
    description = gr.Markdown(elem_id="what-happens")
    command = gr.Code(
        language="shell",
        label="The same on the command line",
        interactive=False,
        lines=1,
        elem_id="command",
        wrap_lines=True,
    )
    with gr.Row(elem_classes="bottom"):
        name = Textbox(
            label="Name of the run", placeholder="made from the recipe", elem_id="run-name"
        )
        start = gr.Button("Start", variant="primary", elem_id="start", scale=0, min_width=160)
    with gr.Accordion(text.EVALUATION, open=False):
        page.evaluation.render()
    return OneRun(description, command, name, start)


def wire(page: Page, store: Store, parts: OneRun, tab: gr.Tab) -> None:
    values = inputs(page)
    # what the form holds is described when this tab opens: at every move of a slider it would only
    # be in the slider's way
    changed = [tab.select, page.factors_key.change, page.choice.change]
    changed += [part.change for part in page.evaluation.all]
    listen(changed, bind(describe, store), values, [parts.description, parts.command], **DRAWN)
    listen([parts.start.click], bind(start, store), [parts.name, *values], parts.name, **QUIET)


def describe(store: Store, *values: Any) -> tuple[str, str]:
    """What Start will do, and the command line that does the same."""
    try:
        recipe, settings = read(values)
        plan, model = store.plan(recipe), store.peek_dense(recipe)
        if plan is None or model is None:
            described = text.paragraph(recipe, {}, settings)
            return markup.as_markdown(described), recipe.command()
        summary = plan.summary()
        standing = text.standing(plan, recipe.policy, store.drafted(recipe))
        need = memory.needed(model, recipe, summary["megabytes"], settings)
    except lrcore.InputError as error:
        return markup.as_markdown(str(error)), ""
    paragraphs = (
        " ".join(filter(None, [text.paragraph(recipe, summary, settings), standing])),
        memory.sentence(need, lrcore.hardware(str(model.device)).free),
        text.stock(lrcore.stock_fit(model, plan)),
    )
    return markup.as_markdown("\n\n".join(paragraphs)), recipe.command()


def start(store: Store, name: str, *values: Any) -> str:
    """Queue the run; the box of its name is empty afterwards."""
    recipe, settings = read_and_check(store, values)
    store.jobs.submit(CompressJob(recipe, run_name(name), settings))
    return ""
