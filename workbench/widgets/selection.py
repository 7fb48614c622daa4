"""The selected layer and component: chosen in any plot or table, marked in all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr
import pandas as pd

import lrcore
from lrcore.compression.analyze import Analysis
from lrcore.system.as_json import json_text

from .components import hidden_component
from .events import EventValues

# the selected layer and component of a new page
FIRST = (
    0,
    next(
        row["components"][0]
        for row in lrcore.list_methods()
        if row["name"] == lrcore.Recipe().method
    ),
)


def mark() -> gr.HTML:
    """Return a hidden component whose value, see `mark_value`, marks a slot in the browser."""
    return hidden_component("selection", "selection.js", value=mark_value([*FIRST], False))


def run_in_address() -> gr.HTML:
    """Return a hidden component whose value, the id of a run or "", goes into the address bar."""
    return hidden_component("run-address", "run-address.js")


MAX_DIGITS = 7  # of a layer index in an address


def _text(query: Mapping[str, str] | None, name: str) -> str | None:
    """Return a parameter of the address, or None."""
    value = (query or {}).get(name)
    return None if value is None else str(value)


def open_linked(titles: Sequence[str], query: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """Return the selected slot, its mark and the open tab of an address such as
    ?tab=...&layer=...&component=...
    """
    layer, component, tab = (_text(query, name) for name in ("layer", "component", "tab"))
    opened = gr.Tabs(selected=tab) if tab in titles else gr.skip()
    if layer is None and component is None:  # a slot may have been clicked meanwhile
        return gr.skip(), gr.skip(), opened
    is_index = layer is not None and layer.isdecimal() and len(layer) < MAX_DIGITS
    slot = [int(layer) if is_index else FIRST[0], component or FIRST[1]]
    return slot, mark_value(slot, is_index), opened


def select_clicked(event: gr.EventData, selected: list) -> tuple[list, str]:
    """Return the slot of a clicked point and its mark.

    A point without a component selects its layer.
    """
    point = EventValues(event)
    layer, component = (*point.listed("custom")[:2], None, None)[:2]
    if layer is None:
        layer = point.number("x")
    elif not isinstance(layer, int):
        raise point.unclear("custom")
    return select([layer, component or selected[1]])


def select_row(component: str, event: gr.SelectData, rows: pd.DataFrame) -> tuple[list, str]:
    """Return the slot of a clicked table row and its mark. component: name of its column."""
    row = dict(zip(rows.columns, event.row_value, strict=True))
    return select([row["layer"], row[component]])


def nearest(analysis: Analysis, slot: Sequence[Any]) -> list:
    """Return the slot if the model has it, else a slot of its layer or of the last layer."""
    layer, name = min(int(slot[0]), analysis.layers - 1), str(slot[1])
    names = [component for index, component, _ in analysis.spectra if index == layer]
    return [layer, name if name in names else names[0]]


def select_nearest(analysis: Analysis | None, slot: list) -> tuple[Any, Any]:
    """Return the slot and its mark for the analysis of another model."""
    if analysis is None or (slot_here := nearest(analysis, slot)) == list(slot):
        return gr.skip(), gr.skip()
    return slot_here, mark_value(slot_here, False)


def select(slot: Sequence[Any]) -> tuple[list, str]:
    """Return a slot chosen by a user, and its mark."""
    slot = [int(slot[0]), str(slot[1])]
    return slot, mark_value(slot, True)


def mark_value(slot: list, in_address: bool) -> str:
    """Return the value of `mark`. in_address: the slot goes into the address bar."""
    return json_text([*slot, in_address])
