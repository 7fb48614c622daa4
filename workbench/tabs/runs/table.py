"""The table of runs: sorted, filtered and paged as the browser asks; a click or a link opens one,
and the ticked ones are compared.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

import lrcore

from ... import run_text
from ...assets import script
from ...chosen import choose
from ...events import DRAWN, PRESSED, QUIET, bind, event_data, listen
from ...page import MOST_RUNS, Page
from ...store import Store
from .listing import COLUMNS, View, listed


def layout(store: Store) -> gr.HTML:
    """Its events: `open` with the id of a run, `choose` with those ticked, and `compare`. The rows
    come past Gradio's queue, once the table is on show; columns, order and words stay in the
    browser.
    """

    def runs_listed(view: dict[str, Any]) -> dict[str, Any]:
        return list_runs(store, view)

    return gr.HTML(
        "",
        html_template=template(),
        js_on_load=script("runs-table.js", MOST=MOST_RUNS),
        server_functions=[runs_listed],
        elem_id="runs-table",
    )


def template() -> str:
    """The box of words, the choice of columns, the buttons of the pages, and room for the rows."""
    usual = View.of({}).columns
    boxes = "".join(
        f"<label><input type='checkbox' data-column='{name}'> {escape(column.label)}</label>"
        for name, column in COLUMNS.items()
        if name != "name"
    )
    words = escape(run_text.SEARCH_RUNS, quote=True)
    return (
        f"<div class='runs' data-usual='{lrcore.json_text(usual)}'><div class='runs-tools' hidden>"
        f"<input type='search' aria-label='{words}' placeholder='{words}'>"
        f"<details><summary>{run_text.COLUMNS_SHOWN}</summary><div class='columns'>{boxes}</div>"
        "</details><span class='runs-rows' role='status'></span>"
        "<button type='button' class='act' data-turn='-1' aria-label='Earlier rows'>‹</button>"
        "<button type='button' class='act' data-turn='1' aria-label='Further rows'>›</button>"
        "<button type='button' class='act compare' disabled>"
        f"{run_text.COMPARE_TICKED}</button></div>"
        "<div class='runs-page' tabindex='0' role='region' aria-label='Runs'></div></div>"
    )


def list_runs(store: Store, view: dict[str, Any]) -> dict[str, Any]:
    """The page of the table that a browser asks for."""
    return listed(store.runs.all(), View.of(view if isinstance(view, dict) else {}))


def wire(page: Page, store: Store, table: gr.HTML) -> None:
    shown = [page.runs_stamp, page.chosen, page.opened_run]
    changed = [part.change for part in shown]
    listen(changed, bind(table_value), shown, table, **DRAWN)
    table.open(bind(open_row), None, [page.opened_run, page.run_address], **PRESSED)
    chosen = table.choose(bind(choose_ticked, store), None, page.chosen, **PRESSED)
    chosen.then(None, page.chosen, None, js=script("runs-address.js"), **QUIET)
    table.compare(open_compare, None, page.tabs, **QUIET)


def wire_link(page: Page, store: Store, title: str) -> None:
    """Open the run that the address names, in the tab of this title."""
    outputs = [page.opened_run, page.tabs]
    read = page.address_first(page.opened)
    read.then(bind(open_linked, store, title, page.titles), page.address, outputs, **QUIET)


def table_value(stamp: str, chosen: list[str], opened: str) -> str:
    """What the table shows beside its rows. Made here: a gr.State has no value in the browser."""
    return lrcore.json_text([stamp, chosen, opened])


def open_compare() -> gr.Tabs:
    return gr.Tabs(selected=run_text.COMPARE_TAB)


def open_row(event: gr.EventData) -> tuple[str, str]:
    """The id of the run clicked, for the page and for the address."""
    run_id = str(event_data(event).get("run", ""))
    return run_id, run_id


def choose_ticked(store: Store, event: gr.EventData) -> Any:
    """The runs to compare: those that are ticked now, all of them, since a tick may come before
    the answer to the one before.
    """
    return choose(store, [str(one) for one in event_data(event).listed("runs")])


def open_linked(
    store: Store, title: str, titles: Sequence[str], query: Mapping[str, str]
) -> tuple[Any, Any]:
    """A page opened as ?run=<id> starts at that run, in the tab of this title unless the address
    names one of `titles`.
    """
    query = query or {}
    run_id = query.get("run", "")
    if run_id not in store.runs.ids():
        return gr.skip(), gr.skip()
    return run_id, gr.skip() if query.get("tab") in titles else gr.Tabs(selected=title)
