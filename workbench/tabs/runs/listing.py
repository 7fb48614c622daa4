"""A page of the table of runs; the browser chooses columns, order and search terms."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

from lrcore.runs.runs import Run

from ... import words
from ...base import numbers
from ...views import markup, run_text

ROWS = 50  # of one page: what a browser draws at once
MAX_LENGTH = 32  # of the name of a model or text; the middle of a longer name is cut


@dataclass(frozen=True)
class Column:
    """A column of the table.

    value: returns the value of a run, by which rows are sorted; None if unknown. as_text: formats a
    value. is_number: aligned to the right. is_default: visible until columns are selected.
    text_of_run: formats the value of a run, if the value is not enough.
    """

    label: str
    value: Callable[[Run], Any]
    as_text: Callable[[Any], str] = str
    is_number: bool = False
    is_default: bool = True
    text_of_run: Callable[[Run], str] | None = None


@dataclass(frozen=True)
class View:
    """The selection of a browser: columns, sorting, search terms, and the page, from 0.

    falling: descending order. words: search terms, all of which a run must contain.
    """

    columns: tuple[str, ...] = ()
    sort: str = "date"
    falling: bool = True
    words: str = ""
    page: int = 0

    @classmethod
    def read(cls, sent: Mapping[str, Any]) -> "View":
        """Return the view that a browser sent or stored, without unknown columns and fields."""
        sent_fields = {row.name: sent[row.name] for row in fields(cls) if row.name in sent}
        columns = [name for name, column in COLUMNS.items() if column.is_default]
        if isinstance(sent_fields.get("columns"), list):
            columns = [name for name in COLUMNS if name in sent_fields["columns"]]
        page = sent_fields.get("page")
        return cls(
            tuple(columns),
            sent_fields["sort"] if sent_fields.get("sort") in [*COLUMNS] else "date",
            bool(sent_fields.get("falling", True)),
            str(sent_fields.get("words") or "")[:200],
            max(0, page) if isinstance(page, int) else 0,
        )


def last_evaluation(run: Run) -> dict[str, Any]:
    """Return the newest evaluation of a run; {} without any."""
    return run.evaluations[-1] if run.evaluations else {}


def change(run: Run) -> float | None:
    """Return the relative change of perplexity from the dense model; None if unknown."""
    perplexity, dense = (
        last_evaluation(run).get(name) for name in ("perplexity", "dense_perplexity")
    )
    return perplexity / dense - 1 if perplexity and dense else None


def protocol(run: Run) -> str:
    """Return the protocol of the newest evaluation."""
    return (
        words.compare_and_runs.protocol(last_evaluation(run)["protocol"]) if run.evaluations else ""
    )


def date(seconds: float) -> str:
    """Return a time since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def from_account(name: str) -> Callable[[Run], Any]:
    """Return a function that returns a figure of a run's size and cost."""
    return lambda run: run.account.to_dict().get(name)


FOUR_DIGITS = "{:.4f}".format
COLUMNS = {
    "name": Column("Name", lambda run: run.name),
    "perplexity": Column(
        "Perplexity",
        lambda run: last_evaluation(run).get("perplexity"),
        is_number=True,
        text_of_run=lambda run: run_text.measured_perplexity(last_evaluation(run)),
    ),
    "change": Column("vs dense", change, numbers.relative_change, True),
    "size": Column("Size", from_account("megabytes"), numbers.megabytes, True),
    "base": Column(
        "Base", lambda run: run.recipe.model, lambda name: run_text.shorter(name, MAX_LENGTH)
    ),
    "tags": Column("Tags", lambda run: ", ".join(run.tags)),
    "date": Column("Date", lambda run: run.created, date, True),
    "method": Column("Method", lambda run: run.method),
    "policy": Column("Policy", lambda run: run.policy),
    "removed": Column("Removed", from_account("achieved"), "{:.1%}".format, True),
    "dense": Column(
        "Dense perplexity",
        lambda run: last_evaluation(run).get("dense_perplexity"),
        FOUR_DIGITS,
        True,
        False,
    ),
    "kl": Column(
        "KL to dense", lambda run: last_evaluation(run).get("kl"), FOUR_DIGITS, True, False
    ),
    "parameters": Column("Parameters", from_account("parameters"), numbers.count, True, False),
    "kv": Column("KV bytes/token", from_account("kv_bytes_per_token"), numbers.count, True, False),
    "flops": Column(
        "FLOPs/token", from_account("flops_per_token"), numbers.with_prefix, True, False
    ),
    "measured": Column("Measured on", protocol, is_default=False),
    "calibrated": Column(
        "Calibrated on",
        lambda run: run.recipe.data,
        lambda name: run_text.shorter(name, MAX_LENGTH),
        is_default=False,
    ),
    "id": Column("Id", lambda run: run.id, is_default=False),
}
SEARCHED = ("name", "tags", "base", "method", "policy", "calibrated", "id")


def table_page(runs: Sequence[Run], view: View) -> dict[str, Any]:
    """Return a page of the table: HTML, range of the rows, page number, and if more follow."""
    if not runs:
        return {
            "html": markup.note(words.compare_and_runs.NO_RUNS, "hint"),
            "rows": "",
            "page": 0,
            "more": False,
        }
    matching = sort_runs([run for run in runs if contains(run, view.words.lower().split())], view)
    page = min(view.page, max(0, (len(matching) - 1) // ROWS))
    first, rows = page * ROWS, matching[page * ROWS : (page + 1) * ROWS]
    return {
        "html": table(rows, view)
        if rows
        else markup.note(words.compare_and_runs.NO_MATCHING_RUNS, "hint"),
        "rows": run_text.rows(first, first + len(rows), len(matching)),
        "page": page,
        "more": first + ROWS < len(matching),
    }


def contains(run: Run, terms: Sequence[str]) -> bool:
    """Return whether the searched columns of a run contain all terms."""
    text = "\n".join(str(COLUMNS[name].value(run)) for name in SEARCHED).lower()
    return all(term in text for term in terms)


def sort_runs(runs: Sequence[Run], view: View) -> list[Run]:
    """Return the runs sorted by the column of the view; runs without a value are last."""
    value = COLUMNS[view.sort].value
    pairs = [(value(run), run) for run in runs]
    ordered = sorted(
        (pair for pair in pairs if pair[0] is not None),
        key=lambda pair: pair[0].lower() if isinstance(pair[0], str) else pair[0],
        reverse=view.falling,
    )
    return [run for _, run in ordered] + [run for value, run in pairs if value is None]


def table(runs: Sequence[Run], view: View) -> str:
    """Return the rows as HTML: a box that selects the run, then the columns."""
    heads = "".join(head(name, view) for name in view.columns)
    body = "".join(row(run, view) for run in runs)
    return (
        f"<table role='grid'><thead><tr><th scope='col' aria-label='{words.compress.COMPARE}'></th>"
        f"{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def head(name: str, view: View) -> str:
    """Return the head of a column: a button that sorts by it."""
    column, order = COLUMNS[name], "none"
    if name == view.sort:
        order = "descending" if view.falling else "ascending"
    kind = " class='number'" if column.is_number else ""
    return (
        f"<th scope='col' aria-sort='{order}'{kind}><button type='button' data-sort='{name}' "
        f"data-falling='{int(name == 'date')}'>{escape(column.label)}</button></th>"
    )


def row(run: Run, view: View) -> str:
    """Return the row of a run."""
    run_id = escape(run.id, quote=True)
    label = escape(words.compare_and_runs.COMPARE_RUN.format(run.name))
    box = f"<input type='checkbox' aria-label='{label}'>"
    cells = "".join(cell(run, name) for name in view.columns)
    tick = f"<td role='gridcell' class='tick'>{box}</td>"
    return f"<tr role='row' data-run='{run_id}'>{tick}{cells}</tr>"


def cell(run: Run, name: str) -> str:
    """Return a value. The run's name is a button; a shortened value is complete on hover."""
    column = COLUMNS[name]
    value = column.value(run)
    text = "–"
    if value is not None:
        text = column.text_of_run(run) if column.text_of_run else column.as_text(value)
    html = escape(text)
    if name == "name":
        html = f"<button type='button' class='open'>{html}</button>"
    is_shortened = isinstance(value, str) and text != value
    tip = f" title='{escape(value, quote=True)}'" if is_shortened else ""
    kind = " class='number'" if column.is_number else ""
    return f"<td role='gridcell'{kind}{tip}>{html}</td>"
