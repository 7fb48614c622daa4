"""The table of runs, a page of rows at a time: the browser chooses columns, order and words."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import lrcore

from ... import markup, numbers, run_text, text

ROWS = 50  # of one page: what a browser draws at once
LONGEST = 32  # letters of a model or text before its middle is left out


@dataclass(frozen=True)
class Column:
    """A column of the table.

    value: of a run, what is sorted by; None: unknown. shown: the value as words. number: whether
    it stands at the right. usual: whether it is there until somebody chooses others. whole: the
    words of a known value that take more of the run than the value.
    """

    label: str
    value: Callable[[lrcore.Run], Any]
    shown: Callable[[Any], str] = str
    number: bool = False
    usual: bool = True
    whole: Callable[[lrcore.Run], str] | None = None


@dataclass(frozen=True)
class View:
    """What a browser has chosen: columns by name, the one sorted by, words that a run must have,
    and the page, counted from 0.
    """

    columns: tuple[str, ...] = ()
    sort: str = "date"
    falling: bool = True
    words: str = ""
    page: int = 0

    @classmethod
    def of(cls, sent: Mapping[str, Any]) -> "View":
        """A view as a browser sends or has kept it; what this version does not know is left out."""
        own = {one.name: sent[one.name] for one in fields(cls) if one.name in sent}
        usual = [name for name, column in COLUMNS.items() if column.usual]
        wanted = own.get("columns") if isinstance(own.get("columns"), list) else None
        chosen = usual if wanted is None else [name for name in COLUMNS if name in wanted]
        page = own.get("page")
        return cls(
            tuple(chosen),
            own["sort"] if own.get("sort") in [*COLUMNS] else "date",
            bool(own.get("falling", True)),
            str(own.get("words") or "")[:200],
            max(0, page) if isinstance(page, int) else 0,
        )


def last(run: lrcore.Run) -> dict[str, Any]:
    """The newest evaluation of a run; empty without any."""
    return run.evaluations[-1] if run.evaluations else {}


def change(run: lrcore.Run) -> float | None:
    """Perplexity above the dense model's, as a share of it; None where one is not known."""
    now, before = (last(run).get(name) for name in ("perplexity", "dense_perplexity"))
    return now / before - 1 if now and before else None


def protocol(run: lrcore.Run) -> str:
    return text.protocol(last(run)["protocol"]) if run.evaluations else ""


def date(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def of_account(name: str) -> Callable[[lrcore.Run], Any]:
    """A figure of a run's size and cost, by its name in JSON."""
    return lambda run: run.account.to_dict().get(name)


FOUR = "{:.4f}".format
COLUMNS = {
    "name": Column("Name", lambda run: run.name),
    "perplexity": Column(
        "Perplexity",
        lambda run: last(run).get("perplexity"),
        number=True,
        whole=lambda run: run_text.figure(last(run)),
    ),
    "change": Column("vs dense", change, numbers.share, True),
    "size": Column("Size", of_account("megabytes"), numbers.megabytes, True),
    "base": Column(
        "Base", lambda run: run.recipe.model, lambda one: run_text.shorter(one, LONGEST)
    ),
    "tags": Column("Tags", lambda run: ", ".join(run.tags)),
    "date": Column("Date", lambda run: run.created, date, True),
    "method": Column("Method", lambda run: run.method),
    "policy": Column("Policy", lambda run: run.policy),
    "removed": Column("Removed", of_account("achieved"), "{:.1%}".format, True),
    "dense": Column(
        "Dense perplexity", lambda run: last(run).get("dense_perplexity"), FOUR, True, False
    ),
    "kl": Column("KL to dense", lambda run: last(run).get("kl"), FOUR, True, False),
    "parameters": Column("Parameters", of_account("parameters"), numbers.count, True, False),
    "kv": Column("KV bytes/token", of_account("kv_bytes_per_token"), numbers.count, True, False),
    "flops": Column("FLOPs/token", of_account("flops_per_token"), numbers.short, True, False),
    "measured": Column("Measured on", protocol, usual=False),
    "calibrated": Column(
        "Calibrated on",
        lambda run: run.recipe.data,
        lambda one: run_text.shorter(one, LONGEST),
        usual=False,
    ),
    "id": Column("Id", lambda run: run.id, usual=False),
}
SEARCHED = ("name", "tags", "base", "method", "policy", "calibrated", "id")


def listed(runs: Sequence[lrcore.Run], view: View) -> dict[str, Any]:
    """One page of the table: html, a sentence that says which rows, the number of the page and
    whether there is one more.
    """
    if not runs:
        return {"html": markup.note(text.NO_RUNS, "hint"), "rows": "", "page": 0, "more": False}
    matching = in_order([run for run in runs if has(run, view.words.lower().split())], view)
    page = min(view.page, max(0, (len(matching) - 1) // ROWS))
    first, rows = page * ROWS, matching[page * ROWS : (page + 1) * ROWS]
    return {
        "html": table(rows, view) if rows else markup.note(run_text.NO_SUCH_RUNS, "hint"),
        "rows": run_text.rows(first, first + len(rows), len(matching)),
        "page": page,
        "more": first + ROWS < len(matching),
    }


def has(run: lrcore.Run, words: Sequence[str]) -> bool:
    """Whether every word is somewhere in what names a run."""
    named = "\n".join(str(COLUMNS[name].value(run)) for name in SEARCHED).lower()
    return all(word in named for word in words)


def in_order(runs: Sequence[lrcore.Run], view: View) -> list[lrcore.Run]:
    """Runs by the column that the view sorts by; those of unknown value last, either way."""
    value = COLUMNS[view.sort].value
    known = [(value(run), run) for run in runs]
    ordered = sorted(
        (pair for pair in known if pair[0] is not None),
        key=lambda pair: pair[0].lower() if isinstance(pair[0], str) else pair[0],
        reverse=view.falling,
    )
    return [run for _, run in ordered] + [run for one, run in known if one is None]


def table(runs: Sequence[lrcore.Run], view: View) -> str:
    """The rows as HTML: a box to choose a run, then the columns."""
    heads = "".join(head(name, view) for name in view.columns)
    body = "".join(row(run, view) for run in runs)
    return (
        f"<table role='grid'><thead><tr><th scope='col' aria-label='{run_text.COMPARED}'></th>"
        f"{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def head(name: str, view: View) -> str:
    """A column's head: a button that sorts by it."""
    column, order = COLUMNS[name], "none"
    if name == view.sort:
        order = "descending" if view.falling else "ascending"
    kind = " class='number'" if column.number else ""
    return (
        f"<th scope='col' aria-sort='{order}'{kind}><button type='button' data-sort='{name}' "
        f"data-falling='{int(name == 'date')}'>{escape(column.label)}</button></th>"
    )


def row(run: lrcore.Run, view: View) -> str:
    run_id = escape(run.id, quote=True)
    box = f"<input type='checkbox' aria-label='{escape(run_text.COMPARE_RUN.format(run.name))}'>"
    cells = "".join(cell(run, name) for name in view.columns)
    tick = f"<td role='gridcell' class='tick'>{box}</td>"
    return f"<tr role='row' data-run='{run_id}'>{tick}{cells}</tr>"


def cell(run: lrcore.Run, name: str) -> str:
    """A value; the run's name is a button, and what was shortened is whole on hover."""
    column = COLUMNS[name]
    value = column.value(run)
    shown = "–"
    if value is not None:
        shown = column.whole(run) if column.whole else column.shown(value)
    words = escape(shown)
    if name == "name":
        words = f"<button type='button' class='open'>{words}</button>"
    whole = isinstance(value, str) and shown != value
    tip = f" title='{escape(value, quote=True)}'" if whole else ""
    kind = " class='number'" if column.number else ""
    return f"<td role='gridcell'{kind}{tip}>{words}</td>"
