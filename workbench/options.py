"""The settings of the chosen method, one component each, drawn anew when the method changes."""

from typing import Any

import gradio as gr

import lrcore

from .parts import QUIET
from .session import Session


def build(session: Session) -> None:
    """Each component writes what differs from the default into the form's `options`."""
    form = session.form

    @gr.render([form["method"], form["options"]], triggers=[session.opened, form["method"].change, session.loaded.change])
    def draw(method: str, chosen: dict[str, Any]) -> None:
        rows = options_of(method)
        if not rows:
            return
        with gr.Row(elem_id="method-options"):
            for row in rows:
                part = component(row, chosen.get(row["name"], row["default"]))
                part.input(keep(row), [part, form["options"]], form["options"], **QUIET)


def options_of(method: str) -> list[dict[str, Any]]:
    return next((row["options"] for row in lrcore.methods() if row["name"] == method), [])


def component(row: dict[str, Any], value: Any) -> gr.components.Component:
    common = {"label": row["name"].replace("_", " "), "info": row["about"], "elem_id": f"option-{row['name']}", "interactive": True}
    common["value"] = value
    if isinstance(row["default"], bool):
        return gr.Checkbox(**common)
    if "choices" in row:
        return gr.Dropdown(choices=list(row["choices"]), min_width=150, **common)
    return gr.Number(minimum=row.get("low"), maximum=row.get("high"), precision=0 if isinstance(row["default"], int) else None, **common)


def keep(row: dict[str, Any]) -> Any:
    def write(value: Any, chosen: dict[str, Any]) -> dict[str, Any]:
        others = {name: old for name, old in chosen.items() if name != row["name"]}
        return others if value is None or value == row["default"] else others | {row["name"]: value}

    return write
