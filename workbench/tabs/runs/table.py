"""The table of runs, newest first; a click or a link opens one."""

from dataclasses import dataclass
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from ... import export, markup, text
from ...components import panel
from ...events import LIVE, QUIET, bind, listen
from ...page import Page
from ...store import Store

COLUMNS = (
    "name",
    "tags",
    "model",
    "method",
    "policy",
    "removed",
    "MB",
    "perplexity",
    "dense perplexity",
    "measured on",
    "id",
)


@dataclass(frozen=True)
class RunsTable:
    table: gr.Dataframe
    empty: gr.HTML


def layout() -> RunsTable:
    table = gr.Dataframe(
        headers=list(COLUMNS),
        interactive=False,
        show_search="filter",
        elem_id="runs-table",
        max_height=360,
        visible=False,
    )
    return RunsTable(table, panel("runs-empty"))


def wire(page: Page, store: Store, parts: RunsTable, opened: gr.State, address: gr.HTML) -> None:
    listen(
        [page.opened, page.runs_stamp.change],
        bind(list_runs, store),
        None,
        [parts.table, parts.empty],
        **LIVE,
    )
    parts.table.select(bind(open_row), None, [opened, address], **QUIET)


def wire_link(page: Page, store: Store, opened: gr.State, title: str) -> None:
    """Open the run that the address names, in the tab of this title."""
    page.opened(bind(open_linked, store, title), None, [opened, page.tabs], **QUIET)


def list_runs(store: Store) -> tuple[Any, str]:
    """The table, or in its place how to get a first run."""
    rows = run_rows(store.runs.all())
    if not rows:
        return gr.Dataframe(visible=False), markup.note(text.NO_RUNS, "hint")
    return gr.Dataframe(pd.DataFrame(rows, columns=list(COLUMNS)), visible=True), ""


def open_row(event: gr.SelectData) -> tuple[str, str]:
    """The id of the run clicked, for the page and for the address."""
    run_id = str(event.row_value[COLUMNS.index("id")])
    return run_id, run_id


def open_linked(store: Store, title: str, request: gr.Request) -> tuple[Any, Any]:
    """A page opened as ?run=<id> starts at that run."""
    run_id = request.query_params.get("run", "")
    if run_id not in store.runs.ids():
        return gr.skip(), gr.skip()
    return run_id, gr.Tabs(selected=title)


def run_rows(runs: list[lrcore.Run]) -> list[list[Any]]:
    """Rows in COLUMNS of runs given oldest first, newest first."""
    return [run_row(run) for run in reversed(runs)]


def run_row(run: lrcore.Run) -> list[Any]:
    summary, results = run.account.to_dict(), ["", "", ""]
    if run.evaluations:
        last = run.evaluations[-1]
        perplexities = [export.figure(last[name]) for name in ("perplexity", "dense_perplexity")]
        results = [*perplexities, text.protocol(last["protocol"])]
    return [
        run.name,
        ", ".join(run.tags),
        run.recipe.model,
        run.method,
        run.policy,
        f"{summary['achieved']:.1%} {summary['budget']}",
        round(summary["megabytes"], 2),
        *results,
        run.id,
    ]
