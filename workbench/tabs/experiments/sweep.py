"""A sweep: methods × policies × ratios × calibration texts as a job."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...jobs import SweepJob
from ...state.store import Store
from ...widgets.components import FLOW
from ...widgets.events import QUIET, bind, listen
from ...widgets.fields import Field, FieldGroup, field_group
from ...widgets.page import Page
from ..compress.job_inputs import inputs, read_and_check


@dataclass(frozen=True)
class SweepControls:
    """fields: ratios, texts, and whether runs are measured on all calibration texts."""

    methods: gr.Dropdown
    policies: gr.Dropdown
    fields: FieldGroup


def layout() -> SweepControls:
    """Place the controls."""
    text = words.compress
    with gr.Accordion(text.SWEEP, open=False, elem_classes=FLOW):
        methods = gr.Dropdown(
            [row["name"] for row in lrcore.list_methods()],
            multiselect=True,
            label=text.SWEEP_METHODS,
            elem_id="sweep-methods",
        )
        policies = gr.Dropdown(
            [row["name"] for row in lrcore.list_policies()],
            multiselect=True,
            label=text.SWEEP_POLICIES,
            info=text.SWEEP_EMPTY,
            elem_id="sweep-policies",
        )
        fields = [
            Field("sweep-ratios", text.REDUCTION, "0.1, 0.2, 0.3, 0.4", text.SWEEP_RATIOS_INFO),
            Field("sweep-sets", text.SWEEP_TEXTS, "", text.SWEEP_EMPTY),
            Field("sweep-cross", text.CROSS, False, text.CROSS_INFO),
        ]
        group = field_group("sweep-fields", fields, ("start-sweep", text.START_SWEEP))
    return SweepControls(methods, policies, group)


def wire(page: Page, store: Store, parts: SweepControls) -> None:
    """Attach the handler."""
    controls = [parts.methods, parts.policies, parts.fields]
    begin = bind(start, store)
    listen([parts.fields.value.submit], begin, [*controls, *inputs(page)], None, **QUIET)


def start(
    store: Store,
    methods: list[str],
    policies: list[str],
    fields: tuple[str, str, bool],
    *values: Any,
) -> None:
    """Queue a sweep.

    fields: ratios and texts as typed, and whether to measure on every text. values: recipe and
    evaluation.
    """
    ratios, texts, cross = fields
    recipe, settings = read_and_check(store, values)
    numbers = read_ratios(ratios, recipe)
    if not methods:
        raise lrcore.InputError(words.compress.NO_METHODS)
    job = SweepJob(
        recipe,
        methods=tuple(methods),
        ratios=tuple(numbers),
        policies=tuple(policies or ()),
        calibration_sets=tuple(name.strip() for name in texts.split(",") if name.strip()),
        evaluation=settings,
        cross=cross,
    )
    job.check()
    store.jobs.submit(job)


def read_ratios(typed: str, recipe: lrcore.Recipe) -> list[float]:
    """Return the ratios of a sweep. Raises InputError for ratios that would fail later."""
    try:
        ratios = [float(part) for part in typed.replace(";", ",").split(",") if part.strip()]
    except ValueError:
        raise lrcore.InputError(words.compress.NOT_RATIOS.format(typed)) from None
    if not ratios:
        raise lrcore.InputError(words.compress.NO_RATIOS)
    return [recipe.with_(ratio=ratio).ratio for ratio in ratios]
