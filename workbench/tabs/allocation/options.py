"""The settings of the chosen method and policy, one component each, drawn anew when the choice
changes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import hand, text
from ...components import Number
from ...events import DRAWN, LIVE, QUIET, bind, listen, warn
from ...page import Page


@dataclass(frozen=True)
class Owner:
    """Who has settings: the form's field that names it, its place in the page's choice, the field
    that keeps what differs from the defaults, and the table of rows to choose from.
    """

    field: str
    place: int
    kept_in: str
    rows: Callable[[], list[dict[str, Any]]]


OWNERS = (
    Owner("method", 0, "options", lrcore.methods),
    Owner("policy", 1, "policy_options", lrcore.policies),
)


def build(page: Page, accordion: gr.Accordion) -> None:
    """Each component writes what differs from the default into the form's `options` or
    `policy_options`. The accordion is where they stand.
    """
    form, choice = page.form, page.choice
    changed = [form["options"].change, form["policy_options"].change]
    chosen = [choice, form["options"], form["policy_options"]]
    listen([page.opened, choice.change, *changed], bind(heading), chosen, accordion, **DRAWN)
    for owner in OWNERS:
        place(page, owner)
    of_method = [form["options"], form["overrides"], form["component_ratios"]]
    form["method"].input(
        bind(other_method),
        [form["method"], choice],
        [*of_method, page.rank_history, choice],
        **LIVE,
    )
    form["policy"].input(
        bind(other_policy), [form["policy"], choice], [form["policy_options"], choice], **LIVE
    )


def other_method(name: str, choice: list) -> Any:
    """What belonged to the method before goes.

    A dropdown sends `input` whenever it is left, so the choice may be the same.
    """
    return gr.skip() if name == choice[0] else ({}, {}, "", hand.EMPTY, [name, *choice[1:]])


def other_policy(name: str, choice: list) -> Any:
    """The options of the policy before go."""
    return gr.skip() if name == choice[1] else ({}, [choice[0], name, choice[2]])


def heading(choice: list, options: dict[str, Any], policy_options: dict[str, Any]) -> Any:
    """The accordion names what differs from the defaults, so that it may stay closed; it is away
    where there is nothing to set.
    """
    owners = {row["name"] for row in (*lrcore.methods(), *lrcore.policies()) if row["options"]}
    named = [name for name in choice[:2] if name in owners]
    changed = ", ".join(f"{name} {value}" for name, value in (options | policy_options).items())
    label = text.OPTIONS.format(" and ".join(named)) + (f": {changed}" if changed else "")
    return gr.update(label=label, visible=bool(named))


def place(page: Page, owner: Owner) -> None:
    """The settings of the row that the form names, drawn anew with each choice."""
    choice, kept = page.choice, page.form[owner.kept_in]

    # one at a time: Gradio goes through the page's components meanwhile, in a thread for each
    alone = {"concurrency_id": "options", "concurrency_limit": 1}

    @gr.render([choice, kept], triggers=[page.opened, choice.change], **alone)
    def draw(names: list, chosen: dict[str, Any]) -> None:
        name = names[owner.place]
        rows = next((row["options"] for row in owner.rows() if row["name"] == name), [])
        if not rows:
            return
        with gr.Row(elem_id=f"{owner.field}-options"):
            for row in rows:
                part = component(row, chosen.get(row["name"], row["default"]))
                given = [part, choice, kept]
                part.input(bind(keep, owner, name, row), given, kept, **LIVE)
                if isinstance(part, gr.Number):
                    left = [part.blur, part.submit]
                    gr.on(left, bind(put_back, row), [part, kept], part, **QUIET)


def component(row: dict[str, Any], value: Any) -> gr.components.Component:
    """The component of one option: its row gives label, explanation, choices and range."""
    common = {
        "value": value,
        "label": row["name"].replace("_", " "),
        "info": row["about"],
        "elem_id": f"option-{row['name']}",
        "interactive": True,
    }
    if isinstance(row["default"], bool):
        return gr.Checkbox(**common)
    if "choices" in row:
        return gr.Dropdown(choices=list(row["choices"]), min_width=150, **common)
    return Number(
        minimum=row.get("low"),
        maximum=row.get("high"),
        precision=0 if isinstance(row["default"], int) else None,
        **common,
    )


def keep(
    owner: Owner, name: str, row: dict[str, Any], value: Any, choice: list, chosen: dict
) -> Any:
    """The options of `name` with this one set; without it where it has its default. A number
    beyond its range may be half typed: see `put_back`.
    """
    # a box of the choice before is on the page until the new ones are drawn
    if choice[owner.place] != name or out_of_range(row, value):
        return gr.skip()
    others = {option: old for option, old in chosen.items() if option != row["name"]}
    return others if value is None or value == row["default"] else others | {row["name"]: value}


def put_back(row: dict[str, Any], value: Any, chosen: dict) -> Any:
    """What the box of an option holds once it is left: where a number beyond the range, or none,
    was typed, that of the plan again.
    """
    refused = out_of_range(row, value)
    if refused:
        warn(refused)
    return chosen.get(row["name"], row["default"]) if refused or value is None else gr.skip()


def out_of_range(row: dict[str, Any], value: Any) -> str:
    """What is wrong with a number beyond the range of an option; "" where nothing is."""
    low, high = row.get("low", -math.inf), row.get("high", math.inf)
    if not isinstance(value, int | float) or low <= value <= high:
        return ""
    span = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
    return f"Option {row['name']} is {span}; got {value:g}."
