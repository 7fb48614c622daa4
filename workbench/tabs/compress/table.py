"""Tables of papers and sweep files: rows of steps as one job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

import lrcore

from ... import text
from ...components import panel
from ...events import PRESSED, QUIET, bind, listen
from ...form import read_recipe
from ...jobs import TableJob
from ...page import Page
from ...store import Store

MOST_SHOWN = 200  # rows before Start; a browser is not sent more


@dataclass(frozen=True)
class TableControls:
    """chosen: name and sweep of the table on show, None before one is chosen."""

    shipped: gr.Dropdown
    load: gr.UploadButton
    start: gr.Button
    rows: gr.HTML
    chosen: gr.JSON


def layout() -> TableControls:
    with gr.Accordion(text.TABLE, open=False):
        with gr.Row(elem_classes="bottom"):
            shipped = gr.Dropdown(
                lrcore.shipped_sweeps(),
                value=None,
                label="Table of a paper",
                info=text.TABLE_INFO,
                elem_id="table-shipped",
            )
            load = gr.UploadButton(
                "Load a sweep file",
                size="sm",
                file_types=[".json", ".yaml", ".yml"],
                elem_id="table-load",
                scale=0,
                min_width=160,
            )
            start = gr.Button(
                "Start the table", size="sm", elem_id="start-table", scale=0, min_width=160
            )
        rows, chosen = panel("table-rows"), gr.JSON({}, visible=False)
    return TableControls(shipped, load, start, rows, chosen)


def wire(page: Page, store: Store, parts: TableControls) -> None:
    shown = [parts.chosen, parts.rows]
    parts.shipped.input(bind(take_shipped), parts.shipped, shown, **PRESSED)
    parts.load.upload(bind(take_file), parts.load, [*shown, parts.shipped], **PRESSED)
    values = [parts.chosen, *page.form.inputs]
    listen([parts.start.click], bind(start, store), values, None, **QUIET)


def take_shipped(name: str | None) -> tuple[dict[str, Any] | None, str]:
    """The table of that name, and its rows as HTML."""
    if name not in lrcore.shipped_sweeps():  # a path would be read as well
        return None, ""
    return shown(name, lrcore.Sweep.read(name))


def take_file(path: str) -> tuple[dict[str, Any] | None, str, None]:
    """The sweep of an uploaded file, its rows as HTML, and no table of a paper.

    Raises InputError where it holds no sweep.
    """
    return (*shown(Path(path).stem, lrcore.Sweep.read(path)), None)


def shown(name: str, sweep: lrcore.Sweep) -> tuple[dict[str, Any], str]:
    """Name and sweep as plain values, and the list of the rows."""
    chains = sweep.cells()
    lines = [" > ".join(step.title for step in chain) for chain in chains[:MOST_SHOWN]]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    left = len(chains) - len(lines)
    more = f"<p>and {left} more</p>" if left else ""
    texts = ", ".join(dict.fromkeys(one.data for one in sweep.evaluations))
    head = escape(text.TABLE_ROWS.format(name, len(chains), texts))
    listed = f"<details open><summary>{head}</summary><ol>{items}</ol>{more}</details>"
    return {"name": name, "sweep": sweep.to_dict()}, f"<div class='note'>{listed}</div>"


def start(store: Store, chosen: Mapping[str, Any] | None, *values: Any) -> None:
    """Queue the table on the form's model. Raises InputError where none is chosen."""
    if not chosen:
        raise lrcore.InputError("No table is chosen: choose one, or load a sweep file.")
    sweep = lrcore.Sweep.from_dict(chosen.get("sweep") or {})
    store.jobs.submit(TableJob(str(chosen.get("name", ""))[:80], on_model(sweep, values)))


def on_model(sweep: lrcore.Sweep, values: Sequence[Any]) -> lrcore.Sweep:
    """The same on the model of the form."""
    recipe = read_recipe(values)
    own = {name: getattr(recipe, name) for name in lrcore.Recipe.fields_of("source")}
    return replace(sweep, base=sweep.base.with_(**own))
