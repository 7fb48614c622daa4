"""One selected layer and component for the whole page: chosen in any plot or table, marked in
all of them, kept in the address bar.
"""

import json
from typing import Any

import gradio as gr
import pandas as pd

from .parts import LIVE, QUIET, clicked, unseen
from .session import FIRST_SLOT as FIRST
from .session import Session


def mark() -> gr.HTML:
    """Unseen; its value, what `said` gives, tells the browser which slot to mark."""
    return unseen("selection", "address.js", "selection.js", value=said([*FIRST], False))


def run_in_address() -> gr.HTML:
    """Unseen; its value, the id of a run or "", is kept in the address bar."""
    return unseen("run-address", "address.js", "run-address.js")


def wire(session: Session) -> None:
    """What a page opened as ?tab=...&layer=...&component=... starts with."""

    def linked(request: gr.Request) -> tuple[Any, Any, Any]:
        asked = request.query_params
        layer, component, tab = (
            asked.get("layer", ""),
            asked.get("component", FIRST[1]),
            asked.get("tab"),
        )
        slot = [int(layer) if layer.isdigit() else FIRST[0], component]
        return (
            slot,
            said(slot, layer.isdigit()),
            gr.Tabs(selected=tab) if tab in session.titles else gr.skip(),
        )

    # in a second step: a run named in the address opens its tab in the first one, and a tab named
    # there as well wins
    session.opened(lambda: None, None, None, **QUIET).then(
        linked, None, [session.selected, session.mark, session.tabs], **QUIET
    )


def follow(session: Session, *events: Any) -> None:
    """Let a click on a point of a plot select its slot.

    A point without a component selects its layer.
    """

    gr.on(list(events), clicked_slot, session.selected, [session.selected, session.mark], **QUIET)


def clicked_slot(event: gr.EventData, now: list) -> tuple[list, str]:
    """The slot of the point clicked, and its mark."""
    point = clicked(event)
    layer, component = (*(point.get("custom") or [])[:2], None, None)[:2]
    return chosen([point["x"] if layer is None else layer, component or now[1]])


def follow_rows(session: Session, frame: gr.Dataframe, component: str) -> None:
    """Let a click on a table row select the slot in its columns `layer` and `component`."""

    def choose(event: gr.SelectData, rows: pd.DataFrame) -> tuple[Any, Any]:
        row = dict(zip(rows.columns, event.row_value, strict=True))
        return chosen([row["layer"], row[component]])

    frame.select(choose, frame, [session.selected, session.mark], **LIVE)


def chosen(slot: list) -> tuple[list, str]:
    slot = [int(slot[0]), str(slot[1])]
    return slot, said(slot, True)


def said(slot: list, chosen: bool) -> str:
    """chosen: by a person, so that it goes into the address."""
    return json.dumps([*slot, chosen])
