"""Options of the chosen method and policy.

All options of all methods and policies have components, made when the page is built. The options of
the chosen method and policy are visible.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...state import manual_ranks
from ...widgets.events import DRAWN, LIVE, QUIET, FormData, bind, form_data, listen, warn
from ...widgets.form import START
from ...widgets.page import Page

Option = dict[str, Any]  # name, default and explanation, as `lrcore.list_methods` returns them


@dataclass(frozen=True)
class Owner:
    """A choice that has options: the method, or the policy.

    field: the form's field with the name. position: of the name in `Page.choice`. stored_in: the
    form's field with the options that differ from their defaults. rows: the table of choices.
    """

    field: str
    position: int
    stored_in: str
    rows: Callable[[], list[dict[str, Any]]]


OWNERS = (
    Owner("method", 0, "options", lrcore.list_methods),
    Owner("policy", 1, "policy_options", lrcore.list_policies),
)


@dataclass(frozen=True)
class OptionSet:
    """The components of the options of a method or policy."""

    owner: Owner
    name: str
    options: list[Option]
    row: gr.Row
    components: list[gr.components.Component]


@dataclass(frozen=True)
class OptionSets:
    """The components of all options.

    choice: the choice whose options are visible, in the form of `Page.choice`. It lags behind the
    choice of the page until the components are updated. values: of all components of an owner, by
    the owner's field.
    """

    accordion: gr.Accordion
    sets: list[OptionSet]
    choice: gr.State
    values: dict[str, FormData]


def layout() -> OptionSets:
    with gr.Accordion(words.allocation.OPTIONS, open=False) as accordion:
        sets = [
            option_set(owner, row) for owner in OWNERS for row in owner.rows() if row["options"]
        ]
    values = {
        owner.field: form_data(
            [part for group in sets if group.owner is owner for part in group.components],
            [row["default"] for group in sets if group.owner is owner for row in group.options],
        )
        for owner in OWNERS
    }
    return OptionSets(accordion, sets, gr.State([START.method, START.policy, 0.0]), values)


def option_set(owner: Owner, row: dict[str, Any]) -> OptionSet:
    """Place the components of a method or policy; the first choice is visible."""
    is_visible = row["name"] == getattr(START, owner.field)
    with gr.Row(visible=is_visible, elem_classes="option-row") as container:
        components = [component(option) for option in row["options"]]
    return OptionSet(owner, row["name"], row["options"], container, components)


def component(option: Option) -> gr.components.Component:
    """Return the component of an option, with label, explanation, choices and range."""
    common = {
        "value": option["default"],
        "label": option["name"].replace("_", " "),
        "info": option["about"],
        # several methods have an option of this name, but only one of them is visible at a time
        "elem_id": f"option-{option['name']}",
        "interactive": True,
    }
    if isinstance(option["default"], bool):
        return gr.Checkbox(**common)
    if "choices" in option:
        return gr.Dropdown(choices=list(option["choices"]), min_width=150, **common)
    return gr.Number(
        minimum=option.get("low"),
        maximum=option.get("high"),
        precision=0 if isinstance(option["default"], int) else None,
        **common,
    )


def wire(page: Page, parts: OptionSets) -> None:
    """Show the options of the choice, and store the options that differ from their defaults."""
    form, choice = page.form, page.choice
    stored = [form[owner.stored_in] for owner in OWNERS]
    changed = [page.opened, choice.change]
    heading_events = [*changed, *(field.change for field in stored)]
    listen(heading_events, bind(heading), [choice, *stored], parts.accordion, **DRAWN)
    rows = [group.row for group in parts.sets]
    components = [part for group in parts.sets for part in group.components]
    listen(
        changed,
        bind(show, parts.sets),
        [parts.choice, choice, *stored],
        [parts.choice, *rows, *components],
        **LIVE,  # not in the queue of the figures, which would delay the options
    )
    for owner in OWNERS:
        wire_owner(page, parts, owner)
    settings = [form["options"], form["rank_overrides"], page.rank_history, choice]
    former = gr.State({})  # settings by method
    inputs, outputs = [form["method"], former, *settings], [former, form["component_ratios"]]
    form["method"].input(bind(choose_method), inputs, [*outputs, *settings], **LIVE)
    form["policy"].input(
        bind(choose_policy), [form["policy"], choice], [form["policy_options"], choice], **LIVE
    )


def wire_owner(page: Page, parts: OptionSets, owner: Owner) -> None:
    """Store entered options. When a number box loses the focus, replace a number out of range."""
    sets = [group for group in parts.sets if group.owner is owner]
    values, stored = parts.values[owner.field], page.form[owner.stored_in]
    inputs = [parts.choice, page.choice, values, stored]
    entered = [part.input for part in values.parts]
    listen(entered, bind(store_options, sets), inputs, stored, **LIVE)
    numbers = [part for part in values.parts if isinstance(part, gr.Number)]
    left_events = [event for part in numbers for event in (part.blur, part.submit)]
    listen(left_events, bind(restore, sets), inputs, numbers, **QUIET)


def choose_method(name: str, former: dict[str, list[Any]], *settings: Any) -> Any:
    """Replace everything that belongs to the previous method by the former settings of this one.

    Component ratios are cleared. former: {method: settings}. settings: options, manual ranks, their
    history, and the choice. A warning says that manual ranks are put aside.

    A dropdown also sends `input` when it loses the focus, so the method may be the same.
    """
    *previous, choice = settings
    if name == choice[0]:
        return gr.skip()
    if previous[1]:
        warn(words.allocation.RANKS_REMOVED.format(previous=choice[0], method=name))
    restored = former.get(name, [{}, {}, manual_ranks.EMPTY])
    return ({**former, choice[0]: previous}, "", *restored, [name, *choice[1:]])


def choose_policy(name: str, choice: list) -> Any:
    """Clear the options of the previous policy."""
    return gr.skip() if name == choice[1] else ({}, [choice[0], name, choice[2]])


def heading(choice: list, options: dict[str, Any], policy_options: dict[str, Any]) -> Any:
    """Return the accordion. The label names the options that differ from their defaults.

    It is hidden if there are no options.
    """
    owners = {
        row["name"] for row in (*lrcore.list_methods(), *lrcore.list_policies()) if row["options"]
    }
    names = [name for name in choice[:2] if name in owners]
    changed = ", ".join(f"{name} {value}" for name, value in (options | policy_options).items())
    label = words.allocation.OPTIONS_OF.format(" and ".join(names))
    return gr.update(label=f"{label}: {changed}" if changed else label, visible=bool(names))


def show(
    sets: Sequence[OptionSet], visible_choice: list, choice: list, *stored: dict[str, Any]
) -> list[Any]:
    """Return the choice, and the updates of all rows and components that show the options.

    visible_choice: the choice whose options are visible. stored: options that differ from their
    defaults, of each owner.
    """
    rows, components = [], []
    for group in sets:
        position = group.owner.position
        is_chosen = group.name == choice[position]
        is_changed = is_chosen or group.name == visible_choice[position]
        rows.append(gr.update(visible=is_chosen) if is_changed else gr.skip())
        chosen_options = stored[position] if is_chosen else {}
        for option in group.options:
            value = chosen_options.get(option["name"], option["default"])
            components.append(gr.update(value=value) if is_changed else gr.skip())
    return [choice, *rows, *components]


def store_options(
    sets: Sequence[OptionSet],
    visible_choice: list,
    choice: list,
    values: list[Any],
    stored: dict[str, Any],
) -> Any:
    """Return the options that differ from their defaults.

    A number out of range is ignored, since the user may still be typing; see `restore`.
    visible_choice: the choice whose options are visible; if it is not the choice of the page,
    nothing is stored.
    """
    if visible_choice != choice:
        return gr.skip()
    entered = dict(stored)
    for group, options in option_values(sets, values):
        if group.name != choice[group.owner.position]:
            continue
        for option, value in options:
            if out_of_range(option, value):
                continue
            entered.pop(option["name"], None)
            if value is not None and value != option["default"]:
                entered[option["name"]] = value
    return gr.skip() if entered == stored else entered


def restore(
    sets: Sequence[OptionSet],
    visible_choice: list,
    choice: list,
    values: list[Any],
    stored: dict[str, Any],
) -> list[Any]:
    """Return the updates of all number boxes.

    An empty box, or a box with a number out of range, shows the option of the plan again.
    """
    updates = []
    for group, options in option_values(sets, values):
        is_shown = visible_choice == choice and group.name == choice[group.owner.position]
        for (option, value), part in zip(options, group.components, strict=True):
            if not isinstance(part, gr.Number):
                continue
            refused = out_of_range(option, value) if is_shown else ""
            if refused:
                warn(refused)
            if refused or (is_shown and value is None):
                updates.append(stored.get(option["name"], option["default"]))
            else:
                updates.append(gr.skip())
    return updates


def option_values(
    sets: Sequence[OptionSet], values: Sequence[Any]
) -> list[tuple[OptionSet, list[tuple[Option, Any]]]]:
    """Return each set with its options and their values. values: of the components of all sets."""
    remaining = iter(values)
    return [(group, [(option, next(remaining)) for option in group.options]) for group in sets]


def out_of_range(option: Option, value: Any) -> str:
    """Return the error message for a number out of range; "" for a valid number."""
    low, high = option.get("low", -math.inf), option.get("high", math.inf)
    if not isinstance(value, int | float) or low <= value <= high:
        return ""
    limits = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
    return f"Option {option['name']} must be {limits}; got {value:g}."
