"""Selected runs: metrics, chart of excess loss over size, and differences between recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.runs.runs import Run

from ... import words
from ...base.assets import script
from ...figures.base import captioned
from ...figures.comparison import Panel, pareto
from ...jobs import DetailsJob, MeasureJob, SpeedJob
from ...state.store import Store
from ...views import markup
from ...widgets.chosen import toggle
from ...widgets.components import button_row, download, panel, plot
from ...widgets.evaluation_controls import read_settings
from ...widgets.events import DRAWN, QUIET, EventValues, bind, listen, together
from ...widgets.page import Page
from . import chart_files, comparison_table
from .chart import AXES, caption, conclusion, describe_times, on_one_device, panels
from .chosen_runs import add_newest, all_differences, list_runs, selected_runs
from .metrics import SPEEDS, results, speeds, tables


@dataclass(frozen=True)
class Comparison:
    """The metrics and the chart of the selected runs."""

    metrics: gr.HTML
    protocol: gr.Dropdown
    axis: gr.Dropdown
    measure: gr.HTML
    chart: gr.HTML
    caption: gr.HTML


def layout() -> Comparison:
    """Place the metrics of the selected runs and the chart."""
    text = words.compare_and_runs
    metrics = panel("compared")
    protocol = gr.Dropdown([], label=text.MEASURED_ON, elem_id="protocol", scale=2)
    axis = gr.Dropdown(list(AXES), value=next(iter(AXES)), label=text.AXIS, elem_id="axis")
    measurements = {
        "measure-runs": text.MEASURE_RUNS,
        "measure-speed": text.MEASURE_SPEED,
        "measure-details": text.MEASURE_DETAILS,
    }
    measure = button_row("measurements", measurements)
    chart, chart_caption = plot("scatter", 360), panel("scatter-caption")
    return Comparison(metrics, protocol, axis, measure, chart, chart_caption)


def differences_layout() -> gr.HTML:
    """Place the table of differences, or the note in its place."""
    with gr.Accordion(words.compare_and_runs.DIFFERENCES, open=True):
        return panel("recipe-differences")


def wire(
    page: Page, store: Store, headline: gr.HTML, parts: Comparison, differences: gr.HTML
) -> None:
    """Attach the handlers. headline: the most important metrics; its `tick` event comes while the
    tab is open, when it opens and after changes of runs.
    """
    stamp = headline.tick
    choice = [page.chosen, parts.protocol]
    listed = bind(list_runs, store)
    listen([stamp], listed, [*choice, *page.form.inputs], choice, **DRAWN)
    # the step after Compress compares the run that was made there
    page.steps.compare(bind(add_newest, store), page.chosen, choice, **QUIET)
    address = {"inputs": page.chosen, "js": script("runs-address.js")}
    changed = together([page.chosen.change, parts.protocol.change, stamp], **address)
    drawn = [headline, parts.metrics, differences]
    listen(changed, bind(draw_runs, store), choice, drawn, **DRAWN)
    settings, chart = [*choice, parts.axis], [parts.chart, parts.caption]
    for events in (changed, [parts.axis.change]):
        listen(events, bind(draw_chart, store), settings, chart, **DRAWN)
    parts.chart.select(bind(toggle_clicked, store), page.chosen, page.chosen, **QUIET)
    saved = [parts.metrics.select, parts.caption.select]
    listen(saved, bind(save, store, parts), settings, page.downloads, **QUIET)
    inputs = [page.chosen, page.evaluation]
    listen([parts.measure.select], bind(measure, store), inputs, None, **QUIET)


def draw_runs(store: Store, ids: list[str], protocol: str | None) -> tuple[str, str, str]:
    """Draw the headline, all metrics and the differences."""
    runs = store.runs_by_id(ids)
    metrics = tables(runs, protocol, results(store, runs))
    return comparison_table.headline(metrics), comparison_table.html(metrics), differences(runs)


def differences(runs: Sequence[Run]) -> str:
    """Return a table of the differences between runs, or a note in its place."""
    text = words.compare_and_runs
    rows = all_differences(runs) if len(runs) > 1 else []
    if not rows:
        return markup.note(text.RECIPES_EQUAL if len(runs) > 1 else text.SELECT_TWO)
    names = ["field", *(f"{i + 1}. {run.name}" for i, run in enumerate(runs))]
    return comparison_table.plain_table(names, rows)


def draw_chart(
    store: Store, ids: list[str], protocol: str | None, axis: str | None
) -> tuple[str, str]:
    """Draw excess loss over the axis, with sentences about the first panel and save buttons."""
    runs, axis = store.runs.all(), axis or next(iter(AXES))
    chart = chart_panels(store, ids, protocol, axis)
    if not chart:
        text = words.compare_and_runs
        reason = text.NO_SPEED if AXES[axis] in SPEEDS else text.FEW_POINTS
        return "", markup.note(reason if runs else "")
    sentences = conclusion(chart[0].points, chart[0].model)
    if AXES[axis] in SPEEDS:
        sentences += " " + describe_times(chart, runs, speeds(store, runs), AXES[axis])
    figure = captioned(pareto(chart, axis, ids or []), caption(chart, runs))
    return figure, markup.note(sentences) + comparison_table.save_buttons()


def chart_panels(store: Store, ids: list[str], protocol: str | None, axis: str) -> list[Panel]:
    """Return the panels of the chart."""
    runs, is_time = store.runs.all(), AXES[axis] in SPEEDS
    measured = on_one_device(runs, speeds(store, runs)) if is_time else {}
    return panels(runs, protocol, AXES[axis], measured, ids or [])


def pressed_format(event: gr.EventData, formats: Mapping[str, str]) -> str:
    """Return the file format that was pressed. Raises InputError for an unknown format."""
    name = EventValues(event)["form"]
    if name not in formats:
        raise EventValues.unclear("form")
    return str(name)


def save_points(
    store: Store, ids: list[str], protocol: str | None, axis: str | None, event: gr.EventData
) -> str:
    """Return the points of the chart as a file to download."""
    axis = axis or next(iter(AXES))
    name = pressed_format(event, chart_files.FILES)
    chart = chart_panels(store, ids, protocol, axis)
    return download(chart_files.FILES[name], chart_files.WRITERS[name](chart, axis))


def toggle_clicked(store: Store, ids: list[str], event: gr.EventData) -> Any:
    """Select the run of the clicked point, or deselect it."""
    custom = EventValues(event).listed("custom")
    return toggle(store, ids or [], str(custom[2])) if len(custom) > 2 else gr.skip()


def save(
    store: Store,
    parts: Comparison,
    event: gr.EventData,
    ids: list[str],
    protocol: str | None,
    axis: str | None,
) -> str:
    """Return the points of the chart, or the metrics, as a file to download."""
    if event.target is parts.caption:
        return save_points(store, ids, protocol, axis, event)
    return save_table(store, ids, protocol, event)


def save_table(store: Store, ids: list[str], protocol: str | None, event: gr.EventData) -> str:
    """Return the metrics as a file to download."""
    name, runs = pressed_format(event, comparison_table.FILES), store.runs_by_id(ids)
    metrics = tables(runs, protocol, results(store, runs))
    return download(comparison_table.FILES[name], comparison_table.WRITERS[name](metrics))


def measure(store: Store, event: gr.EventData, ids: list[str], evaluation: list[Any]) -> None:
    """Queue the measurement whose button was pressed. evaluation: values of the controls."""
    pressed = EventValues(event)
    if pressed["action"] == "measure-speed":
        return measure_speed(store, ids)
    measurements = {"measure-runs": measure_runs, "measure-details": measure_details}
    if pressed["action"] not in measurements:
        raise pressed.unclear("action")
    return measurements[pressed["action"]](store, ids, evaluation)


def measure_runs(store: Store, ids: list[str], evaluation: list[Any]) -> None:
    """Queue a measurement of the selected runs. evaluation: values of the controls."""
    for settings, run_ids in ids_by_settings(selected_runs(store, ids), evaluation).items():
        store.jobs.submit(MeasureJob(run_ids, settings))


def measure_speed(store: Store, ids: list[str]) -> None:
    """Queue a measurement of the speed of the selected runs."""
    store.jobs.submit(SpeedJob(tuple(run.id for run in selected_runs(store, ids))))


def measure_details(store: Store, ids: list[str], evaluation: list[Any]) -> None:
    """Queue a measurement of components and task. evaluation: values of the controls."""
    for settings, run_ids in ids_by_settings(selected_runs(store, ids), evaluation).items():
        store.jobs.submit(DetailsJob(run_ids, settings))


def ids_by_settings(
    runs: Sequence[Run], evaluation: list[Any]
) -> dict[lrcore.EvaluationSettings, tuple[str, ...]]:
    """Return the ids of runs by settings with a text that no run was calibrated on."""
    ids: dict[lrcore.EvaluationSettings, tuple[str, ...]] = {}
    for run in runs:
        settings = read_settings(True, *evaluation[1:], calibrated_on=run.recipe.data)  # type: ignore[misc]
        held_out = settings.held_out_from([compared.recipe.data for compared in runs])
        ids[held_out] = (*ids.get(held_out, ()), run.id)
    return ids
