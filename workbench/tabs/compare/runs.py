"""The choice of runs, their figures, excess loss over size, and where their recipes differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from ... import markup, text
from ...assets import script
from ...chosen import toggle
from ...components import download, panel, plot
from ...evaluation_controls import read_settings
from ...events import DRAWN, QUIET, Said, bind, event_data, listen
from ...figures.base import captioned
from ...figures.comparison import Panel, pareto
from ...jobs import DetailsJob, MeasureJob, SpeedJob
from ...page import Page
from ...store import Store
from . import forms, points
from .chart import AXES, caption, conclusion, of_times, on_one_device, panels
from .choice import add_newest, list_runs
from .details import details, speeds
from .differences import all_differences
from .metrics import SPEEDS, Known, tables
from .models import some_runs


@dataclass(frozen=True)
class RunChoice:
    figures: gr.HTML
    protocol: gr.Dropdown
    axis: gr.Dropdown
    measure: gr.Button
    speed: gr.Button
    details: gr.Button
    chart: gr.HTML
    caption: gr.HTML


@dataclass(frozen=True)
class Differences:
    table: gr.Dataframe
    note: gr.HTML


def layout(page: Page) -> RunChoice:
    page.chosen.render()
    figures = panel("compared")
    with gr.Row(elem_classes="bottom", elem_id="measured-row"):
        protocol = gr.Dropdown([], label="Measured on", elem_id="protocol", scale=2)
        axis = gr.Dropdown(list(AXES), value=next(iter(AXES)), label="Against", elem_id="axis")
        measure = gr.Button(
            "Measure these runs", size="sm", elem_id="measure-runs", scale=0, min_width=180
        )
        speed = gr.Button(
            "Measure their speed", size="sm", elem_id="measure-speed", scale=0, min_width=180
        )
        details_button = gr.Button(
            "Measure components and task",
            size="sm",
            elem_id="measure-details",
            scale=0,
            min_width=210,
        )
    chart, caption = plot("scatter", 360), panel("scatter-caption")
    return RunChoice(figures, protocol, axis, measure, speed, details_button, chart, caption)


def differences_layout() -> Differences:
    with gr.Accordion("Only the differences: recipes, sizes, perplexities", open=True):
        table = gr.Dataframe(interactive=False, elem_id="recipe-differences")
        return Differences(table, panel("recipes-equal"))


def wire(page: Page, store: Store, parts: RunChoice, differences: Differences) -> None:
    stamp = page.runs_stamp.change
    choice = [page.chosen, parts.protocol]
    read = page.address_first(page.opened, stamp)
    read.then(bind(list_runs, store), [page.address, *choice], choice, **DRAWN)
    # the step after Compress is to compare what was made there
    added = page.steps.compare(bind(add_newest, store), page.chosen, choice, **QUIET)
    for chosen in (page.chosen.input, added.then):
        chosen(None, page.chosen, None, js=script("runs-address.js"), **QUIET)
    listen(
        [page.chosen.change, parts.protocol.change, stamp],
        bind(draw_runs, store),
        choice,
        [parts.figures, differences.table, differences.note],
        **DRAWN,
    )
    listen(
        [page.chosen.change, parts.protocol.change, parts.axis.change, stamp],
        bind(draw_chart, store),
        [page.chosen, parts.protocol, parts.axis],
        [parts.chart, parts.caption],
        **DRAWN,
    )
    clicked = parts.chart.select(bind(toggle_clicked, store), page.chosen, page.chosen, **QUIET)
    clicked.then(None, page.chosen, None, js=script("runs-address.js"), **QUIET)
    parts.figures.select(bind(save, store), choice, page.downloads, **QUIET)
    drawn = [*choice, parts.axis]
    parts.caption.select(bind(save_points, store), drawn, page.downloads, **QUIET)
    chosen = [page.chosen, page.evaluation.collected]
    listen([parts.measure.click], bind(measure_runs, store), chosen, None, **QUIET)
    listen([parts.details.click], bind(measure_details, store), chosen, None, **QUIET)
    parts.speed.click(bind(measure_speed, store), page.chosen, None, **QUIET)


def draw_runs(store: Store, ids: list[str], protocol: str | None) -> tuple[Any, ...]:
    """The comparison, the table of differences, and a note in its place where there is none."""
    runs = store.chosen_runs(ids)
    rows = all_differences(runs) if len(runs) > 1 else []
    columns = ["field", *(f"{i + 1}. {run.name}" for i, run in enumerate(runs))]
    frame = pd.DataFrame(rows, columns=columns) if rows else None
    note = "" if rows else text.RECIPES_EQUAL if len(runs) > 1 else text.ONE_RECIPE
    return (
        forms.html(tables(runs, protocol, known(store, runs))),
        gr.update(value=frame, visible=bool(rows)),
        markup.note(note),
    )


def draw_chart(
    store: Store, ids: list[str], protocol: str | None, axis: str | None
) -> tuple[str, str]:
    """Excess loss over the axis; which runs no other dominates in the first panel, what is left
    out, and buttons that save the points.
    """
    runs, axis = store.runs.all(), axis or next(iter(AXES))
    drawn = chart_panels(store, ids, protocol, axis)
    if not drawn:
        none = text.NO_SPEED if AXES[axis] in SPEEDS else text.FEW_POINTS
        return "", markup.note(none if runs else "")
    says = conclusion(drawn[0].points, drawn[0].model)
    if AXES[axis] in SPEEDS:
        says += " " + of_times(drawn, runs, speeds(store, runs), AXES[axis])
    figure = captioned(pareto(drawn, axis, ids or []), caption(drawn, runs))
    return figure, markup.note(says) + forms.saves()


def chart_panels(store: Store, ids: list[str], protocol: str | None, axis: str) -> list[Panel]:
    """What is drawn over the axis."""
    runs, of_speed = store.runs.all(), AXES[axis] in SPEEDS
    known = on_one_device(runs, speeds(store, runs)) if of_speed else {}
    return panels(runs, protocol, AXES[axis], known, ids or [])


def form_of(event: gr.EventData, forms: Mapping[str, str]) -> str:
    """The form of a file that was pressed. Raises InputError where it is none of these."""
    form = event_data(event)["form"]
    if form not in forms:
        raise Said.unclear("form")
    return str(form)


def save_points(
    store: Store, ids: list[str], protocol: str | None, axis: str | None, event: gr.EventData
) -> str:
    """The points of the chart as a file of the form that was pressed."""
    axis = axis or next(iter(AXES))
    form, drawn = form_of(event, points.FILES), chart_panels(store, ids, protocol, axis)
    return download(points.FILES[form], points.WRITERS[form](drawn, axis))


def toggle_clicked(store: Store, ids: list[str], event: gr.EventData) -> Any:
    """The chosen runs, with the one whose point was clicked or without it."""
    custom = event_data(event).listed("custom")
    return toggle(store, ids or [], str(custom[2])) if len(custom) > 2 else gr.skip()


def save(store: Store, ids: list[str], protocol: str | None, event: gr.EventData) -> str:
    """The comparison on show as a file of the form that was pressed."""
    form, runs = form_of(event, forms.FILES), store.chosen_runs(ids)
    shown = tables(runs, protocol, known(store, runs))
    return download(forms.FILES[form], forms.WRITERS[form](shown))


def measure_runs(store: Store, ids: list[str], evaluation: list[Any]) -> None:
    """Queue a measurement of the chosen runs; evaluation: the values of its controls."""
    for settings, own in by_text(some_runs(store, ids), evaluation).items():
        store.jobs.submit(MeasureJob(own, settings))


def measure_speed(store: Store, ids: list[str]) -> None:
    store.jobs.submit(SpeedJob(tuple(run.id for run in some_runs(store, ids))))


def measure_details(store: Store, ids: list[str], evaluation: list[Any]) -> None:
    """Queue where the chosen runs lose what they lose; evaluation: the values of its controls."""
    for settings, own in by_text(some_runs(store, ids), evaluation).items():
        store.jobs.submit(DetailsJob(own, settings))


def by_text(
    runs: Sequence[lrcore.Run], evaluation: list[Any]
) -> dict[lrcore.EvaluationSettings, tuple[str, ...]]:
    """The ids of runs by how they are measured: on what none of them was calibrated on."""
    texts: dict[lrcore.EvaluationSettings, tuple[str, ...]] = {}
    for run in runs:
        settings = read_settings(True, *evaluation[1:], calibrated_on=run.recipe.data)
        apart = settings.apart_from([one.recipe.data for one in runs])
        texts[apart] = (*texts.get(apart, ()), run.id)
    return texts


def known(store: Store, runs: Sequence[lrcore.Run]) -> Known:
    return Known(speeds(store, runs), details(store, runs))
