"""Ways to a smaller model without ranks: fields, the expected result, and a job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ...state.store import Store
from ...widgets.events import DRAWN, QUIET, bind, listen
from ...widgets.fields import FieldGroup
from ...widgets.page import Page
from ..compress.job_inputs import inputs


@dataclass(frozen=True)
class Reduction:
    """The last of `controls` is the name of the run. results: the components of the values that
    `describe` returns.

    describe, start: take the store, the values of the controls, and those of the form; `start`
    also takes those of the evaluation, and queues the job. fit: takes the store, the controls, and
    the values that `describe` takes, and returns the fields within the ranges of the model.
    """

    controls: FieldGroup
    results: tuple[gr.HTML, ...]
    describe: Callable[..., Any]
    start: Callable[..., None]
    fit: Callable[..., Any] | None = None


def wire(page: Page, store: Store, reductions: Sequence[Reduction], tab: gr.Tab) -> None:
    """Attach the handlers. All reductions share a listener for each purpose."""
    groups = [reduction.controls for reduction in reductions]
    changed = [tab.select, page.analysis_key.change, page.form["rank_multiple"].change]
    changed += [group.value.input for group in groups]
    results = [result for reduction in reductions for result in reduction.results]
    results += [reduction.controls.value for reduction in reductions if reduction.fit]
    draw = bind(describe, store, reductions)
    listen(changed, draw, [*groups, *page.form.inputs], results, **DRAWN)
    pressed = [group.value.submit for group in groups]
    begin, values = bind(start, store, reductions), [*groups, *inputs(page)]
    listen(pressed, begin, values, [group.value for group in groups], **QUIET)


def describe(
    store: Store, reductions: Sequence[Reduction], event: gr.EventData, *values: Any
) -> dict[Any, Any]:
    """Describe the result of each reduction, and fit the fields to another model.

    values: of all controls, then of the form. Returns values by component.
    """
    controls, form = values[: len(reductions)], values[len(reductions) :]
    was_entered = any(reduction.controls.value is event.target for reduction in reductions)
    described: dict[Any, Any] = {}
    for reduction, entered in zip(reductions, controls, strict=True):
        results = reduction.describe(store, entered, *form)
        described |= dict(zip(reduction.results, results, strict=True))
        if reduction.fit and not was_entered:  # a field that is being moved stays
            fitted = reduction.fit(store, reduction.controls, entered, *form)
            described[reduction.controls.value] = fitted
    return described


def start(
    store: Store, reductions: Sequence[Reduction], event: gr.EventData, *values: Any
) -> dict[Any, Any]:
    """Queue the job of the reduction whose button was pressed, and empty the name of the run.

    values: of all controls, then of the form and the evaluation.
    """
    positions = [reduction.controls.value for reduction in reductions]
    position = positions.index(event.target)
    group, controls = reductions[position].controls, values[position]
    reductions[position].start(store, controls, *values[len(reductions) :])
    return {group.value: group.with_values([*controls[:-1], ""])}
