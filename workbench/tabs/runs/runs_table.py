"""The table of runs: sorting, search, pages, opening a run, and selecting runs to compare."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

from lrcore.system.as_json import json_text

from ... import words
from ...base.assets import SharedScript, script
from ...state.store import Store
from ...widgets import selection
from ...widgets.chosen import choose, chosen
from ...widgets.components import when_visible_script
from ...widgets.events import DRAWN, PRESSED, QUIET, EventValues, bind, listen
from ...widgets.page import MAX_RUNS, Page
from .listing import COLUMNS, View, table_page

TABLE = SharedScript(script("runs-table.js", MOST=MAX_RUNS), "attachRuns", has_server=True)


def layout(store: Store) -> gr.HTML:
    """Place the table.

    The events are `open` with the id of a run, `choose` with the selected ids, and `compare`. The
    browser requests rows without Gradio's queue while the table is visible. Columns, order and
    search terms are stored in the browser. A `tick` event comes as in `panel`, after changes
    of runs.
    """

    def runs_listed(view: dict[str, Any]) -> dict[str, Any]:
        return list_runs(store, view)

    return gr.HTML(
        "",
        html_template=template(),
        js_on_load=TABLE.call + when_visible_script(("runs",)),
        server_functions=[runs_listed],
        elem_id="runs-table",
    )


def template() -> str:
    """Return the search box, the choice of columns, the page buttons, and the place of the rows."""
    default_columns = View.read({}).columns
    boxes = "".join(
        f"<label><input type='checkbox' data-column='{name}'> {escape(column.label)}</label>"
        for name, column in COLUMNS.items()
        if name != "name"
    )
    label = escape(words.compare_and_runs.SEARCH_RUNS, quote=True)
    return (
        f"<div class='runs' data-usual='{json_text(default_columns)}'>"
        "<div class='runs-tools' hidden>"
        f"<input type='search' aria-label='{label}' placeholder='{label}'>"
        f"<details><summary>{words.compare_and_runs.COLUMNS}</summary>"
        f"<div class='columns'>{boxes}</div>"
        "</details><span class='runs-rows' role='status'></span>"
        "<button type='button' class='act' data-turn='-1' "
        f"aria-label='{words.compare_and_runs.EARLIER_ROWS}'>‹</button>"
        "<button type='button' class='act' data-turn='1' "
        f"aria-label='{words.compare_and_runs.LATER_ROWS}'>›</button>"
        "<button type='button' class='act compare' disabled>"
        f"{words.compare_and_runs.COMPARE_SELECTED}</button></div>"
        "<div class='runs-page' tabindex='0' role='region' aria-label='Runs'></div></div>"
    )


def list_runs(store: Store, view: dict[str, Any]) -> dict[str, Any]:
    """Return the page of the table that a browser requests."""
    return table_page(store.runs.all(), View.read(view if isinstance(view, dict) else {}))


def wire(page: Page, store: Store, table: gr.HTML) -> None:
    """Attach the handlers."""
    state = [page.runs_stamp, page.chosen, page.opened_run]
    changed = [table.tick, page.chosen.change, page.opened_run.change]
    listen(changed, bind(table_value), state, table, **DRAWN)
    table.open(bind(open_row), None, [page.opened_run, page.run_address], **PRESSED)
    table.choose(bind(select_runs, store), None, page.chosen, **PRESSED)
    table.compare(open_compare, None, page.tabs, **QUIET)


def wire_link(page: Page, store: Store, title: str) -> None:
    """Select the slot and the runs in the address, and open its tab and its run, in the tab of
    this title.
    """
    outputs = [page.selected, page.selection_mark, page.opened_run, page.tabs, page.chosen]
    opened = bind(open_address, store, title, page.titles)
    listen([page.opened], opened, page.address, outputs, **QUIET)


def table_value(stamp: str, chosen: list[str], opened: str) -> str:
    """Return the state of the table as JSON: a gr.State has no value in the browser."""
    return json_text([stamp, chosen, opened])


def open_compare() -> gr.Tabs:
    """Open the Compare tab."""
    return gr.Tabs(selected=words.compare_and_runs.COMPARE_TAB)


def open_row(event: gr.EventData) -> tuple[str, str]:
    """Return the id of the clicked run, for the page and for the address."""
    run_id = str(EventValues(event).get("run", ""))
    return run_id, run_id


def select_runs(store: Store, event: gr.EventData) -> Any:
    """Select the runs to compare.

    The event has all selected runs, because it may come before the previous answer.
    """
    return choose(store, [str(run_id) for run_id in EventValues(event).listed("runs")])


def open_address(
    store: Store, title: str, titles: Sequence[str], query: Mapping[str, str]
) -> tuple[Any, ...]:
    """Return the selected slot, its mark, the open run, the open tab and the selected runs of an
    address.
    """
    slot, mark, tab = selection.open_linked(titles, query)
    run_id, tab_of_run = open_linked(store, title, titles, query)
    opened_tab = tab if tab_of_run == gr.skip() else tab_of_run
    return slot, mark, run_id, opened_tab, select_linked(store, query)


def select_linked(store: Store, query: Mapping[str, str]) -> Any:
    """Select the runs of an address ?runs=<id>,<id>; deleted runs are left out."""
    ids = str((query or {}).get("runs", "")).split(",")[:MAX_RUNS]
    existing = [run.id for run in store.runs_by_id(list(filter(None, ids)))]
    return chosen(store, existing) if existing else gr.skip()


def open_linked(
    store: Store, title: str, titles: Sequence[str], query: Mapping[str, str]
) -> tuple[Any, Any]:
    """Open the run of an address ?run=<id>.

    The tab of this title opens unless the address names one of `titles`.
    """
    query = query or {}
    run_id = query.get("run", "")
    if run_id not in store.runs.ids():
        return gr.skip(), gr.skip()
    return run_id, gr.skip() if query.get("tab") in titles else gr.Tabs(selected=title)
