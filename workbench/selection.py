"""One selected layer and component for the whole page: chosen in any plot or table, marked in
all of them, kept in the address bar.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr
import pandas as pd

import lrcore

from .components import unseen
from .events import event_data

# layer and component that a fresh page has selected
FIRST = (
    0,
    next(row["components"][0] for row in lrcore.methods() if row["name"] == lrcore.Recipe().method),
)


def mark() -> gr.HTML:
    """Unseen; its value, what `mark_value` gives, tells the browser which slot to mark."""
    return unseen("selection", "selection.js", value=mark_value([*FIRST], False))


def run_in_address() -> gr.HTML:
    """Unseen; its value, the id of a run or "", is kept in the address bar."""
    return unseen("run-address", "run-address.js")


MOST_DIGITS = 7  # of a layer's number in an address


def _text(query: Mapping[str, str] | None, name: str) -> str | None:
    """A parameter of the address; None where it has none."""
    value = (query or {}).get(name)
    return None if value is None else str(value)


def open_linked(titles: Sequence[str], query: Mapping[str, str]) -> tuple[Any, Any, Any]:
    """What a page opened as ?tab=...&layer=...&component=... starts with: the selected slot, its
    mark and the open tab.
    """
    layer, component, tab = (_text(query, name) for name in ("layer", "component", "tab"))
    opened = gr.Tabs(selected=tab) if tab in titles else gr.skip()
    if layer is None and component is None:  # FIRST is selected, or what was clicked meanwhile
        return gr.skip(), gr.skip(), opened
    numbered = layer is not None and layer.isdecimal() and len(layer) < MOST_DIGITS
    slot = [int(layer) if numbered else FIRST[0], component or FIRST[1]]
    return slot, mark_value(slot, numbered), opened


def select_clicked(event: gr.EventData, now: list) -> tuple[list, str]:
    """The slot of the point clicked in a plot, and its mark.

    A point without a component selects its layer.
    """
    point = event_data(event)
    layer, component = (*point.listed("custom")[:2], None, None)[:2]
    if layer is None:
        layer = point.number("x")
    elif not isinstance(layer, int):
        raise point.unclear("custom")
    return select([layer, component or now[1]])


def select_row(component: str, event: gr.SelectData, rows: pd.DataFrame) -> tuple[list, str]:
    """The slot in the columns `layer` and `component` of the table row clicked, and its mark."""
    row = dict(zip(rows.columns, event.row_value, strict=True))
    return select([row["layer"], row[component]])


def nearest(analysis: lrcore.Analysis, slot: Sequence[Any]) -> list:
    """The slot itself where the analysed model has it; else one of its layer, or of the last."""
    layer, name = min(int(slot[0]), analysis.layers - 1), str(slot[1])
    own = [one for at, one, _ in analysis.spectra if at == layer]
    return [layer, name if name in own else own[0]]


def select_nearest(analysis: lrcore.Analysis | None, slot: list) -> tuple[Any, Any]:
    """The slot, and its mark, that is selected once there is an analysis of another model."""
    if analysis is None or (there := nearest(analysis, slot)) == list(slot):
        return gr.skip(), gr.skip()
    return there, mark_value(there, False)


def select(slot: Sequence[Any]) -> tuple[list, str]:
    slot = [int(slot[0]), str(slot[1])]
    return slot, mark_value(slot, True)


def mark_value(slot: list, by_person: bool) -> str:
    """by_person: chosen by a person, so that it goes into the address."""
    return lrcore.json_text([*slot, by_person])
