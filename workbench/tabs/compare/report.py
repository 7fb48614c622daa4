"""Report of a comparison: a single HTML file with measurements, answers, plots and protocols."""

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore
from lrcore.data.chat_template import Messages
from lrcore.evaluation import report
from lrcore.runs.runs import Run
from lrcore.system.path_access import strip_paths

from ... import words
from ...figures.comparison import Panel
from ...state.store import Store
from ...widgets.components import download
from ...widgets.events import QUIET, bind, listen
from ...widgets.page import Page
from .answers import Generated
from .chart import AXES
from .chosen_runs import evaluation_of, selected_runs
from .comparison_table import all_columns, change_text, notes, value_text
from .metrics import METRICS, Column, Table, results, tables
from .runs import chart_panels

SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")


def wire(page: Page, store: Store, headline: gr.HTML, inputs: list[Any]) -> None:
    """Attach the handler. headline: with the button. inputs: of `save_report`, without the runs."""
    save = bind(save_report, store)
    listen([headline.select], save, [page.chosen, *inputs], page.downloads, **QUIET)


def save_report(store: Store, ids: list[str], protocol: str | None, *values: Any) -> str:
    """Return the report as a file to download.

    values: the values of SAMPLING; the conversations; the answers to the set of prompts as CSV; the
    answers in the columns. Raises InputError without a run.
    """
    runs = selected_runs(store, ids)
    sampling, conversations, answers_csv, generated = values
    names = [strip_paths(f"dense · {runs[0].recipe.model}"), *(run.name for run in runs)]
    text = words.compare_and_runs
    measured = tables(runs, protocol, results(store, runs))
    about = {"made": time.strftime("%Y-%m-%d %H:%M"), "lrcore": lrcore.__version__}
    page = report.page(
        text.COMPARISON.format(", ".join(run.name for run in runs)),
        *map(measurements, measured),
        *column_answers(names, generated),
        *chat_answers(names, conversations),
        *prompt_set_answers(answers_csv),
        *plots(store, runs, protocol),
        recipes(runs),
        *protocols(runs, protocol),
        report.fields_table(
            text.REPORT_SAMPLING, dict(zip(SAMPLING, sampling, strict=True)) | about
        ),
    )
    return download("comparison.html", page)


def measurements(table: Table) -> report.Table:
    """Return the metrics of a dense model and its runs, with changes in brackets, and notes."""
    columns = all_columns(table)
    rows = [
        [METRICS[name].label, *(cell(table, name, column) for column in columns)]
        for name in table.rows
    ]
    measured_on = words.compare_and_runs.MEASURED_ON
    rows += [[measured_on, strip_paths(protocol)] for protocol in notes(table)]
    return report.Table(
        words.compare_and_runs.MEASUREMENTS,
        rows,
        ["", *(strip_paths(column.title) for column in columns)],
    )


def cell(table: Table, name: str, column: Column) -> str:
    """Return a value, with the change from the dense model in brackets."""
    change = change_text(table, name, column)
    return value_text(name, column) + (f" ({change})" if change else "")


def column_answers(names: Sequence[str], generated: Generated) -> list[report.Answers]:
    """Return the answers in the columns of the page; [] before the first answers."""
    if len(generated.texts) != len(names):
        return []
    answers = [text.removeprefix(generated.prompt) for text in generated.texts]
    pairs = list(zip(names, answers, strict=True))
    return [report.Answers(words.compare_and_runs.ANSWERS, generated.prompt, pairs)]


def chat_answers(
    names: Sequence[str], conversations: Sequence[Messages]
) -> Iterator[report.Answers]:
    """Yield the answers to each message of a chat."""
    messages = conversations[0] if conversations else []
    for i, message in enumerate(messages):
        if message["role"] == "user":
            answers = [chat[i + 1]["content"] if chat[i + 1 :] else "" for chat in conversations]
            pairs = list(zip(names, answers, strict=False))
            yield report.Answers(words.compare_and_runs.CHAT, message["content"], pairs)


def prompt_set_answers(answers_csv: str) -> list[report.Answers]:
    """Return the answers to the set of prompts. answers_csv: see `answers_csv` of lrcore."""
    return report.answers(list(csv.DictReader(io.StringIO(answers_csv))))


def plots(store: Store, runs: Sequence[Run], protocol: str | None) -> Iterator[report.Figure]:
    """Yield the perplexity of the selected runs against each size and time that was measured."""
    ids = [run.id for run in runs]
    for axis in AXES:
        for panel in chart_panels(store, ids, protocol, axis):
            points = selected_points(panel, ids)
            if len(points) > 1:
                title = words.compare_and_runs.REPORT_PLOT.format(axis)
                yield report.scatter(title, points, axis, "perplexity")


def selected_points(panel: Panel, ids: Sequence[str]) -> list[report.Point]:
    """Return the points of the dense model and of the selected runs."""
    return [
        report.Point(point.name, point.name, point.x, point.perplexity)
        for point in panel.points
        if not point.run or point.run in ids
    ]


def recipes(runs: Sequence[Run]) -> report.Table:
    """Return the settings of each run."""
    fields = list(dict.fromkeys(name for run in runs for name in run.fields))
    rows = [[name, *(field(run.fields, name) for run in runs)] for name in fields]
    return report.Table(words.compare_and_runs.RECIPES, rows, ["", *(run.name for run in runs)])


def protocols(runs: Sequence[Run], protocol: str | None) -> Iterator[report.Table]:
    """Yield how the perplexity of each run was measured."""
    for run in runs:
        evaluation = evaluation_of(run, protocol)
        if evaluation:
            settings = evaluation["protocol"]
            rows = [(name, field(settings, name)) for name in settings]
            yield report.Table(words.compare_and_runs.REPORT_PROTOCOL.format(run.name), rows)


def field(values: Mapping[str, Any], name: str) -> str:
    """Return the value of a field, without the paths and secrets of this machine."""
    return strip_paths(report.format_value(values.get(name)))
