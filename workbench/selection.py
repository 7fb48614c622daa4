"""One selected layer and component for the whole page: chosen in any plot or table, marked in
all of them, kept in the address bar.
"""

import json
from typing import Any

import gradio as gr
import pandas as pd

from .parts import LIVE, QUIET, clicked
from .session import FIRST_SLOT as FIRST
from .session import Session

ADDRESS = """
function address(changes) {
  const url = new URL(window.location);
  for (const [name, value] of Object.entries(changes)) value ? url.searchParams.set(name, value) : url.searchParams.delete(name);
  history.replaceState(history.state, '', url);
}
"""
# The plots listen for lrw-selected and draw their own marks, so a selection needs no figure from
# the server.
REMEMBER = """
function spread() {
  const [layer, component, chosen] = JSON.parse(props.value || '[]');
  if (component === undefined) return;
  window.selectedSlot = {layer, component};
  window.dispatchEvent(new Event('lrw-selected'));
  if (chosen) address({layer: String(layer), component});
}
watch('value', spread);
spread();
let shown = null;
function remember() {
  const tab = document.querySelector('#tabs [role=tab][aria-selected=true]')?.textContent.trim();
  if (tab && shown && tab !== shown) address({tab});
  if (tab) shown = tab;
}
(function look() {
  const tabs = document.querySelector('#tabs');
  if (!tabs) { setTimeout(look, 50); return; }
  new MutationObserver(remember).observe(tabs, {subtree: true, attributes: true, attributeFilter: ['aria-selected']});
  remember();
})();
"""


def mark() -> gr.HTML:
    """Unseen; its value, what `said` gives, tells the browser which slot to mark."""
    return gr.HTML(
        said([*FIRST], False),
        html_template="<span></span>",
        js_on_load=ADDRESS + REMEMBER,
        elem_id="selection",
        elem_classes="unseen",
    )


def run_in_address() -> gr.HTML:
    """Unseen; its value, the id of a run or "", is kept in the address bar."""
    script = ADDRESS + "watch('value', () => address({run: props.value}));"
    return gr.HTML(
        "",
        html_template="<span></span>",
        js_on_load=script,
        elem_id="run-address",
        elem_classes="unseen",
    )


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
