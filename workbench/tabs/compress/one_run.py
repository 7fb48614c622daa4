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
from ...widgets.fields import Field, FieldGroup, field_group, group_value
from ...widgets.page import Page
from .job_inputs import inputs, read, read_and_check, run_name

NAME = Field(
    "run-name", words.compress.RUN_NAME, "", placeholder=words.compress.RUN_NAME_HINT
)  # of the run


@dataclass(frozen=True)
class OneRun:
    """The description of the run, and its name with the button that starts it."""

    description: gr.Markdown
    command: gr.Code
    run: FieldGroup


def layout(page: Page) -> OneRun:
    """Place the description, the command line and the controls."""
    text = words.compress
    description = gr.Markdown(elem_id="what-happens")
    run = field_group("run-fields", [NAME], ("start", text.START))
    with expert_fold("compress", page.job_list):
        page.evaluation.value.render()
        command = gr.Code(
            language="shell",
            label=text.COMMAND,
            interactive=False,
            lines=1,
            elem_id="command",
            wrap_lines=True,
        )
    return OneRun(description, command, run)


def wire(page: Page, store: Store, parts: OneRun) -> None:
    """Attach the handlers."""
    values = inputs(page)
    # Drawn while the tab is open: drawing at every move of a slider would slow the slider down.
    changed = [page.job_list.tick]
    changed += [page.evaluation.value.input, page.evaluation.value.blur]
    listen(changed, bind(describe, store), values, [parts.description, parts.command], **DRAWN)
    run = parts.run
    listen([run.value.submit], bind(start, store), [run, *values], run.value, **QUIET)


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


def start(store: Store, controls: list[Any], *values: Any) -> list[dict[str, Any]]:
    """Queue the run, and return the value of its fields with an empty name. controls: its name."""
    recipe, settings = read_and_check(store, values)
    store.jobs.submit(CompressJob(recipe, run_name(controls[0]), settings))
    return group_value([NAME])
