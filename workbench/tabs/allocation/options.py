"""Options of the chosen method and policy.

Method and policy each have a row of fields: lists of choices, number boxes and check boxes, as many
of each kind as the method or policy with the most options needs. The fields take the labels, ranges
and values of the options of the choice; the remaining fields are hidden.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...state import manual_ranks
from ...widgets.events import DRAWN, LIVE, QUIET, FormData, bind, form_data, listen, warn
from ...widgets.page import Page

Option = dict[str, Any]  # name, default and explanation, as `lrcore.list_methods` returns them
KINDS = (gr.Dropdown, gr.Number, gr.Checkbox)


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

    def options(self, name: str) -> list[Option]:
        """Return the options of a method or policy; [] for an unknown name."""
        return next((row["options"] for row in self.rows() if row["name"] == name), [])


OWNERS = (
    Owner("method", 0, "options", lrcore.list_methods),
    Owner("policy", 1, "policy_options", lrcore.list_policies),
)


@dataclass(frozen=True)
class OptionFields:
    """The fields of an owner.

    components: in the order of `KINDS`. values: of the components.
    """

    owner: Owner
    row: gr.Row
    components: list[gr.components.Component]
    values: FormData

    def assign(self, name: str) -> list[Option | None]:
        """Return the option of each component for a method or policy; None if it is hidden."""
        options = self.owner.options(name)
        remaining = {kind: [row for row in options if field_kind(row) is kind] for kind in KINDS}
        return [
            remaining[type(part)].pop(0) if remaining[type(part)] else None
            for part in self.components
        ]


@dataclass(frozen=True)
class OptionSets:
    """The fields of both owners.

    choice: the choice that the fields belong to, in the form of `Page.choice`. It lags behind the
    choice of the page until the components are updated.
    """

    accordion: gr.Accordion
    fields: list[OptionFields]
    choice: gr.State


def layout() -> OptionSets:
    with gr.Accordion(words.allocation.OPTIONS, open=False) as accordion:
        fields = [option_fields(owner) for owner in OWNERS]
    return OptionSets(accordion, fields, gr.State(["", "", 0.0]))


def option_fields(owner: Owner) -> OptionFields:
    """Place the fields of an owner, hidden; `show` fills them when the page opens."""
    components: list[gr.components.Component] = []
    sets = [row["options"] for row in owner.rows()]
    with gr.Row(elem_classes="option-row") as row:
        for kind in KINDS:
            by_set = [[option for option in s if field_kind(option) is kind] for s in sets]
            for options in zip_longest(*by_set):
                components.append(empty_field(kind, [option for option in options if option]))
    values = form_data(components, [part.value for part in components])
    return OptionFields(owner, row, components, values)


def field_kind(option: Option) -> type[gr.components.Component]:
    """Return the component that an option needs."""
    if isinstance(option["default"], bool):
        return gr.Checkbox
    return gr.Dropdown if "choices" in option else gr.Number


def empty_field(
    kind: type[gr.components.Component], options: list[Option]
) -> gr.components.Component:
    """Return a hidden field. options: all options that it may take.

    A list begins with the choices of all these options, because the server accepts no others from a
    page that was opened before a restart.
    """
    common = {"label": label(options[0]), "visible": False, "interactive": True}
    if kind is gr.Dropdown:
        choices = dict.fromkeys(choice for option in options for choice in option["choices"])
        return gr.Dropdown(list(choices), value=None, min_width=150, **common)
    return gr.Number(None, **common) if kind is gr.Number else gr.Checkbox(**common)


def label(option: Option) -> str:
    return option["name"].replace("_", " ")


def option_update(option: Option | None, stored: dict[str, Any]) -> Any:
    """Return the update of a field that takes this option; hide it if there is none."""
    if option is None:
        return gr.update(visible=False)
    limits: dict[str, Any] = {}
    if "choices" in option:
        limits = {"choices": list(option["choices"])}
    elif field_kind(option) is gr.Number:
        limits = {"minimum": option.get("low"), "maximum": option.get("high")}
    return gr.update(
        value=stored.get(option["name"], option["default"]),
        label=label(option),
        info=option["about"],
        elem_id=f"option-{option['name']}",
        visible=True,
        **limits,
    )


def wire(page: Page, parts: OptionSets) -> None:
    """Show the options of the choice, and store the options that differ from their defaults."""
    form, choice = page.form, page.choice
    stored = [form[owner.stored_in] for owner in OWNERS]
    changed = [page.opened, choice.change]
    heading_events = [*changed, *(field.change for field in stored)]
    listen(heading_events, bind(heading), [choice, *stored], parts.accordion, **DRAWN)
    components = [part for fields in parts.fields for part in (fields.row, *fields.components)]
    listen(
        changed,
        bind(show, parts.fields),
        [choice, *stored],
        [parts.choice, *components],
        **LIVE,  # not in the queue of the figures, which would delay the options
    )
    for fields in parts.fields:
        wire_owner(page, parts, fields)
    settings = [form["options"], form["rank_overrides"], page.rank_history, choice]
    former = gr.State({})  # settings by method
    inputs, outputs = [form["method"], former, *settings], [former, form["component_ratios"]]
    form["method"].input(bind(choose_method), inputs, [*outputs, *settings], **LIVE)
    form["policy"].input(
        bind(choose_policy), [form["policy"], choice], [form["policy_options"], choice], **LIVE
    )


def wire_owner(page: Page, parts: OptionSets, fields: OptionFields) -> None:
    """Store entered options. When a number box loses the focus, replace a number out of range."""
    stored = page.form[fields.owner.stored_in]
    inputs = [parts.choice, page.choice, fields.values, stored]
    entered = [part.input for part in fields.components]
    listen(entered, bind(store_options, fields), inputs, stored, **LIVE)
    numbers = [part for part in fields.components if isinstance(part, gr.Number)]
    left_events = [event for part in numbers for event in (part.blur, part.submit)]
    listen(left_events, bind(restore, fields), inputs, numbers, **QUIET)


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
    chosen = [(owner, choice[owner.position]) for owner in OWNERS]
    names = [name for owner, name in chosen if owner.options(name)]
    changed = ", ".join(f"{name} {value}" for name, value in (options | policy_options).items())
    label = words.allocation.OPTIONS_OF.format(" and ".join(names))
    return gr.update(label=f"{label}: {changed}" if changed else label, visible=bool(names))


def show(fields: Sequence[OptionFields], choice: list, *stored: dict[str, Any]) -> list[Any]:
    """Return the choice, and the updates of each row and its components.

    stored: options that differ from their defaults, of each owner.
    """
    updates = []
    for owner_fields, owner_stored in zip(fields, stored, strict=True):
        options = owner_fields.assign(choice[owner_fields.owner.position])
        updates.append(gr.update(visible=any(options)))
        updates += [option_update(option, owner_stored) for option in options]
    return [choice, *updates]


def store_options(
    fields: OptionFields,
    visible_choice: list,
    choice: list,
    values: list[Any],
    stored: dict[str, Any],
) -> Any:
    """Return the options that differ from their defaults.

    An invalid value is ignored, since the user may still be typing; see `restore`.
    visible_choice: the choice that the fields belong to; if it is not the choice of the page,
    nothing is stored.
    """
    if visible_choice != choice:
        return gr.skip()
    entered = dict(stored)
    options = fields.assign(choice[fields.owner.position])
    for option, value in zip(options, values, strict=True):
        if option is None or invalid_value(option, value):
            continue
        entered.pop(option["name"], None)
        if value is not None and value != option["default"]:
            entered[option["name"]] = value
    return gr.skip() if entered == stored else entered


def restore(
    fields: OptionFields,
    visible_choice: list,
    choice: list,
    values: list[Any],
    stored: dict[str, Any],
) -> list[Any]:
    """Return the updates of the number boxes.

    An empty box, or a box with an invalid number, shows the option of the plan again.
    """
    updates = []
    options = fields.assign(choice[fields.owner.position])
    for option, value, part in zip(options, values, fields.components, strict=True):
        if not isinstance(part, gr.Number):
            continue
        if option is None or visible_choice != choice:
            updates.append(gr.skip())
            continue
        reason = invalid_value(option, value)
        if reason:
            warn(reason)
        is_replaced = bool(reason) or value is None
        previous = stored.get(option["name"], option["default"])
        updates.append(previous if is_replaced else gr.skip())
    return updates


def invalid_value(option: Option, value: Any) -> str:
    """Return the error message for a value that the option does not take; "" for a valid one."""
    name = option["name"]
    if "choices" in option:
        choices = ", ".join(option["choices"])
        return "" if value in option["choices"] else f"Option {name} must be one of {choices}."
    low, high = option.get("low", -math.inf), option.get("high", math.inf)
    if not isinstance(value, int | float) or low <= value <= high:
        return ""
    limits = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
    return f"Option {name} must be {limits}; got {value:g}."
