"""Options of the chosen method and policy, in one component."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore

from ... import words
from ...state.keys import BYTES, PROBED
from ...widgets.events import IN_TURN, LIVE, PRESSED, EventValues, bind, listen, warn
from ...widgets.fields import Field, field_group, group_value
from ...widgets.page import Page

Option = dict[str, Any]  # name, default and explanation, as `lrcore.list_methods` returns them
Options = dict[str, Any]  # values by name, of the options that differ from their defaults


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


ELEM_ID = "option-"  # and the name of the option
OWNERS = (
    Owner("method", 0, "options", lrcore.list_methods),
    Owner("policy", 1, "policy_options", lrcore.list_policies),
)


@dataclass(frozen=True)
class OptionSets:
    """The options of both owners, and the accordion around them."""

    accordion: gr.Accordion
    fields: gr.HTML


def layout() -> OptionSets:
    with gr.Accordion(words.allocation.OPTIONS, open=False) as accordion:
        return OptionSets(accordion, field_group("options").value)


def wire(page: Page, parts: OptionSets) -> None:
    """Show the options of the choice, and store the options that differ from their defaults."""
    form, choice = page.form, page.choice
    stored = [form[owner.stored_in] for owner in OWNERS]
    inputs = [choice, *stored]
    changed = [page.opened, *(part.change for part in inputs)]
    # not in the queue of the figures, which would delay the options
    listen(changed, bind(show), inputs, [parts.accordion, parts.fields], **LIVE)
    parts.fields.input(bind(enter), inputs, stored, **PRESSED)
    parts.fields.blur(bind(leave), inputs, parts.fields, **PRESSED)
    settings = [form["options"], form["rank_overrides"], choice]
    former = gr.State({})  # settings by method
    inputs, outputs = [form["method"], former, *settings], [former, form["component_ratios"]]
    form["method"].input(bind(choose_method), inputs, [*outputs, *settings], **IN_TURN)
    form["policy"].input(
        bind(choose_policy), [form["policy"], choice], [form["policy_options"], choice], **IN_TURN
    )
    chosen = [form["policy"], form["policy_options"], choice]
    form["budget"].select(bind(choose_budget), choice, chosen, **LIVE)


def choose_method(name: str, former: dict[str, list[Any]], *settings: Any) -> Any:
    """Replace everything that belongs to the previous method by the former settings of this one.

    Component ratios are cleared. former: {method: settings}. settings: options, manual ranks, and
    the choice. A warning says that manual ranks are put aside.

    A dropdown also sends `input` when it loses the focus, so the method may be the same.
    """
    *previous, choice = settings
    if name == choice[0]:
        return gr.skip()
    if previous[1]:
        warn(words.allocation.RANKS_REMOVED.format(previous=choice[0], method=name))
    restored = former.get(name, [{}, {}])
    return ({**former, choice[0]: previous}, "", *restored, [name, *choice[1:]])


def choose_budget(event: gr.SelectData, choice: list) -> Any:
    """Choose policy probed for a budget of bytes: it chooses ranks and bits together."""
    if event.value != BYTES or choice[1] == PROBED:
        return gr.skip()
    gr.Info(words.allocation.BYTES_POLICY)
    return PROBED, {}, [choice[0], PROBED, choice[2]]


def choose_policy(name: str, choice: list) -> Any:
    """Clear the options of the previous policy."""
    return gr.skip() if name == choice[1] else ({}, [choice[0], name, choice[2]])


def show(choice: list, *stored: Options) -> tuple[Any, Any]:
    """Return the accordion and the value of the fields. stored: the options of each owner.

    The label names the options that differ from their defaults. Without options, all is hidden.
    """
    chosen = [(owner, choice[owner.position]) for owner in OWNERS]
    names = [name for owner, name in chosen if owner.options(name)]
    differing = [f"{name} {value}" for options in stored for name, value in options.items()]
    label = words.allocation.OPTIONS_OF.format(" and ".join(names))
    label = f"{label}: {', '.join(differing)}" if differing else label
    return gr.update(label=label, visible=bool(names)), group_value(option_fields(choice, stored))


def option_fields(choice: list, stored: Sequence[Options]) -> list[Field]:
    """Return the fields of the options of method and policy, with their values."""
    return [
        Field(
            f"{ELEM_ID}{option['name']}",
            option["name"].replace("_", " "),
            options.get(option["name"], option["default"]),
            option["about"],
            owner.field,
            tuple((name, name) for name in option.get("choices", ())),
            option.get("low"),
            option.get("high"),
        )
        for owner, options in zip(OWNERS, stored, strict=True)
        for option in owner.options(choice[owner.position])
    ]


def entered(event: gr.EventData, choice: list) -> tuple[int, Option, Any]:
    """Return the position of the owner in `OWNERS`, the option, and the value in its field.

    Raises InputError for an option that the choice lacks.
    """
    sent = EventValues(event)
    for i, owner in enumerate(OWNERS):
        for option in owner.options(choice[owner.position]):
            if (owner.field, f"{ELEM_ID}{option['name']}") == (sent["owner"], sent["field"]):
                return i, option, sent["value"]
    raise sent.unclear("field")


def enter(event: gr.EventData, choice: list, *stored: Options) -> list[Any]:
    """Return the options of each owner that differ from their defaults.

    An invalid value is ignored, since the user may still be typing; see `leave`.
    """
    i, option, value = entered(event, choice)
    options: list[Any] = [gr.skip()] * len(OWNERS)
    if value is None or invalid_value(option, value):
        return options
    kept = {name: former for name, former in stored[i].items() if name != option["name"]}
    new = kept if value == option["default"] else {**kept, option["name"]: value}
    if new != stored[i]:
        options[i] = new
    return options


def leave(event: gr.EventData, choice: list, *stored: Options) -> Any:
    """Return the fields again if a number box was left empty or with an invalid number."""
    _, option, value = entered(event, choice)
    reason = "" if value is None else invalid_value(option, value)
    if reason:
        warn(reason)
    is_replaced = bool(reason) or value is None
    return group_value(option_fields(choice, stored)) if is_replaced else gr.skip()


def invalid_value(option: Option, value: Any) -> str:
    """Return the error message for a value that the option does not take; "" for a valid one."""
    name = option["name"]
    if "choices" in option:
        choices = ", ".join(option["choices"])
        return "" if value in option["choices"] else f"Option {name} must be one of {choices}."
    if isinstance(option["default"], bool):
        return "" if isinstance(value, bool) else f"Option {name} must be true or false."
    low, high = option.get("low", -math.inf), option.get("high", math.inf)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"Option {name} must be a number."
    if low <= value <= high:
        return ""
    limits = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
    return f"Option {name} must be {limits}; got {value:g}."
