"""The settings of the chosen method and policy, one component each, drawn anew when the choice
changes.
"""

from collections.abc import Callable
from typing import Any

import gradio as gr

import lrcore

from . import hand, text
from .parts import LIVE, listen
from .session import Session


def build(session: Session, room: gr.Accordion) -> None:
    """Each component writes what differs from the default into the form's `options` or
    `policy_options`. `room` is where they stand.
    """
    form, chosen = session.form, session.chosen
    fields = [form[name] for name in ("method", "policy", "options", "policy_options")]
    listen(
        [session.opened, chosen.change, form["options"].change, form["policy_options"].change],
        heading,
        fields,
        room,
        **LIVE,
    )
    place(session, "method", "options", lrcore.methods)
    place(session, "policy", "policy_options", lrcore.policies)
    of_method = [
        form["options"],
        form["overrides"],
        form["component_ratios"],
        session.history,
        chosen,
    ]
    form["method"].input(other_method, [form["method"], chosen], of_method, **LIVE)
    form["policy"].input(
        other_policy, [form["policy"], chosen], [form["policy_options"], chosen], **LIVE
    )


def other_method(name: str, chosen: list) -> Any:
    """What belonged to the method before goes.

    A dropdown says `input` whenever it is left, so the choice may be the same.
    """
    return gr.skip() if name == chosen[0] else ({}, {}, "", hand.EMPTY, [name, *chosen[1:]])


def other_policy(name: str, chosen: list) -> Any:
    return gr.skip() if name == chosen[1] else ({}, [chosen[0], name, chosen[2]])


def heading(
    method: str, policy: str, options: dict[str, Any], policy_options: dict[str, Any]
) -> Any:
    """The accordion names what differs from the defaults, so that it may stay closed; it is away
    where there is nothing to set.
    """
    owners = {row["name"] for row in (*lrcore.methods(), *lrcore.policies()) if row["options"]}
    named = [name for name in (method, policy) if name in owners]
    changed = ", ".join(f"{name} {value}" for name, value in (options | policy_options).items())
    label = text.OPTIONS.format(" and ".join(named)) + (f": {changed}" if changed else "")
    return gr.Accordion(label=label, visible=bool(named))


def place(
    session: Session, owner: str, field: str, table: Callable[[], list[dict[str, Any]]]
) -> None:
    """The settings of the row that the form's `owner` names, kept in its `field`."""
    form = session.form

    @gr.render([form[owner], form[field]], triggers=[session.opened, session.chosen.change])
    def draw(name: str, chosen: dict[str, Any]) -> None:
        rows = next((row["options"] for row in table() if row["name"] == name), [])
        if not rows:
            return
        with gr.Row(elem_id=f"{owner}-options"):
            for row in rows:
                part = component(row, chosen.get(row["name"], row["default"]))
                part.input(keep(name, row), [part, form[owner], form[field]], form[field], **LIVE)


def component(row: dict[str, Any], value: Any) -> gr.components.Component:
    common = {
        "label": row["name"].replace("_", " "),
        "info": row["about"],
        "elem_id": f"option-{row['name']}",
        "interactive": True,
    }
    common["value"] = value
    if isinstance(row["default"], bool):
        return gr.Checkbox(**common)
    if "choices" in row:
        return gr.Dropdown(choices=list(row["choices"]), min_width=150, **common)
    return gr.Number(
        minimum=row.get("low"),
        maximum=row.get("high"),
        precision=0 if isinstance(row["default"], int) else None,
        **common,
    )


def keep(owner: str, row: dict[str, Any]) -> Any:
    def write(value: Any, owner_now: str, chosen: dict[str, Any]) -> Any:
        if (
            owner_now != owner
        ):  # a box of the choice before, on the page until the new ones are drawn
            return gr.skip()
        others = {name: old for name, old in chosen.items() if name != row["name"]}
        return others if value is None or value == row["default"] else others | {row["name"]: value}

    return write
