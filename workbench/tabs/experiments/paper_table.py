"""Tables of papers and sweep files: rows of steps as a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

import lrcore
from lrcore.runs.sweep import included_sweeps

from ... import words
from ...jobs import TableJob
from ...state.store import Store
from ...widgets.components import FLOW, button_row_html, panel
from ...widgets.events import PRESSED, QUIET, bind, listen
from ...widgets.form import read_recipe
from ...widgets.page import Page

MAX_ROWS = 200  # listed before Start; more would slow the browser down
MAX_NAME_LENGTH = 80


@dataclass(frozen=True)
class TableControls:
    """rows: with the button that starts the table. selected: name and sweep of the listed table;
    None before a selection.
    """

    included: gr.Dropdown
    load: gr.UploadButton
    rows: gr.HTML
    selected: gr.State


def layout() -> TableControls:
    """Place the controls and the list of rows."""
    text = words.compress
    with gr.Accordion(text.TABLE, open=False, elem_classes=FLOW):
        included = gr.Dropdown(
            included_sweeps(),
            value=None,
            label=text.INCLUDED_TABLE,
            info=text.TABLE_INFO,
            elem_id="table-shipped",
        )
        load = gr.UploadButton(
            text.LOAD_SWEEP,
            size="sm",
            file_types=[".json", ".yaml", ".yml"],
            elem_id="table-load",
            scale=0,
            min_width=160,
        )
        rows = panel("table-rows", value=start_button())
    return TableControls(included, load, rows, gr.State(None))


def start_button() -> str:
    """Return the button above the rows."""
    return button_row_html({"start-table": words.compress.START_TABLE})


def wire(page: Page, store: Store, parts: TableControls) -> None:
    """Attach the handlers."""
    outputs = [parts.selected, parts.rows]
    parts.included.input(bind(select_included), parts.included, outputs, **PRESSED)
    parts.load.upload(bind(load_file), parts.load, [*outputs, parts.included], **PRESSED)
    values = [parts.selected, *page.form.inputs]
    listen([parts.rows.select], bind(start, store), values, None, **QUIET)


def select_included(name: str | None) -> tuple[dict[str, Any] | None, str]:
    """Return an included table, and the rows as HTML."""
    if name not in included_sweeps():  # `Sweep.read` would also read a path
        return None, start_button()
    return described_sweep(name, lrcore.Sweep.read(name))


def load_file(path: str) -> tuple[dict[str, Any] | None, str, None]:
    """Return the sweep of an uploaded file, the rows as HTML, and no included table.

    Raises InputError if the file holds no sweep.
    """
    return (*described_sweep(Path(path).stem, lrcore.Sweep.read(path)), None)


def described_sweep(name: str, sweep: lrcore.Sweep) -> tuple[dict[str, Any], str]:
    """Return name and sweep as plain values, and the rows as HTML."""
    chains = sweep.cells()
    lines = [" > ".join(step.title for step in chain) for chain in chains[:MAX_ROWS]]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    remaining = len(chains) - len(lines)
    remainder = f"<p>{words.compress.MORE_ROWS.format(remaining)}</p>" if remaining else ""
    texts = ", ".join(dict.fromkeys(settings.data for settings in sweep.evaluations))
    head = escape(words.compress.TABLE_ROWS.format(name, len(chains), texts))
    rows = f"<details open><summary>{head}</summary><ol>{items}</ol>{remainder}</details>"
    listing = f"{start_button()}<div class='note'>{rows}</div>"
    return {"name": name, "sweep": sweep.to_dict()}, listing


def start(store: Store, selected: Mapping[str, Any] | None, *values: Any) -> None:
    """Queue the table with the form's model. Raises InputError without a selected table."""
    if not selected:
        raise lrcore.InputError(words.compress.NO_TABLE)
    sweep = lrcore.Sweep.from_dict(selected.get("sweep") or {})
    name = str(selected.get("name", ""))[:MAX_NAME_LENGTH]
    store.jobs.submit(TableJob(name, with_model(sweep, values)))


def with_model(sweep: lrcore.Sweep, values: Sequence[Any]) -> lrcore.Sweep:
    """Return a sweep with the form's model."""
    recipe = read_recipe(values)
    source = {name: getattr(recipe, name) for name in lrcore.Recipe.fields_of("source")}
    return replace(sweep, base=sweep.base.with_(**source))
