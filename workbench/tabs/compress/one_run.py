"""A run with the form's recipe: description, command line, and the Start button."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.checkpoints.standard.standard_fit import standard_fit
from lrcore.system.hardware import hardware

from ... import words
from ...jobs import CompressJob
from ...state.keys import BYTES
from ...state.plan_view import bits_message
from ...state.store import Store
from ...views import markup, memory, preview, run_text
from ...widgets.events import DRAWN, QUIET, bind, listen
from ...widgets.expert_fold import expert_fold
from ...widgets.page import Page
from .job_inputs import inputs, read, read_and_check, run_name


@dataclass(frozen=True)
class OneRun:
    """The description of the run, and the controls that start it."""

    description: gr.Markdown
    command: gr.Code
    name: gr.Textbox
    start: gr.Button


def layout(page: Page) -> OneRun:
    """Place the description, the command line and the controls."""
    text = words.compress
    description = gr.Markdown(elem_id="what-happens")
    with gr.Row(elem_classes="bottom"):
        name = gr.Textbox(label=text.RUN_NAME, placeholder=text.RUN_NAME_HINT, elem_id="run-name")
        start = gr.Button(text.START, variant="primary", elem_id="start", scale=0, min_width=160)
    with expert_fold("compress"):
        page.evaluation.value.render()
        command = gr.Code(
            language="shell",
            label=text.COMMAND,
            interactive=False,
            lines=1,
            elem_id="command",
            wrap_lines=True,
        )
    return OneRun(description, command, name, start)


def wire(page: Page, store: Store, parts: OneRun) -> None:
    """Attach the handlers."""
    values = inputs(page)
    # Drawn while the tab is open: drawing at every move of a slider would slow the slider down.
    changed = [page.job_list.tick]
    changed += [page.evaluation.value.input, page.evaluation.value.blur]
    listen(changed, bind(describe, store), values, [parts.description, parts.command], **DRAWN)
    listen([parts.start.click], bind(start, store), [parts.name, *values], parts.name, **QUIET)


def describe(store: Store, *values: Any) -> tuple[str, str]:
    """Return the description of the run, and the equivalent command line."""
    try:
        recipe, settings = read(values)
        plan, model = store.plan(recipe), store.peek_dense(recipe)
        if plan is None or model is None:
            known = (preview.run_summary(recipe, {}), preview.run_protocol(recipe, settings))
            return markup.as_markdown("\n\n".join(known)), recipe.command()
        size = plan.summary()
        status = words.allocation.plan_status(plan, recipe.policy, store.is_draft(recipe))
        bits = bits_message(plan) if plan.budget == BYTES else ""
        required = memory.needed(model, recipe, size["megabytes"], settings)
    except lrcore.InputError as error:
        return markup.as_markdown(str(error)), ""
    paragraphs = (
        " ".join(filter(None, [preview.run_summary(recipe, size), bits, status])),
        memory.sentence(required, hardware(str(model.device)).free),
        # the page shows what follows with the expert settings
        preview.run_protocol(recipe, settings),
        run_text.standard_fit(standard_fit(model, plan)),
    )
    return markup.as_markdown("\n\n".join(paragraphs)), recipe.command()


def start(store: Store, name: str, *values: Any) -> str:
    """Queue the run and return an empty name."""
    recipe, settings = read_and_check(store, values)
    store.jobs.submit(CompressJob(recipe, run_name(name), settings))
    return ""
