"""Several small fields in one component: lists of choices, sliders, boxes and check boxes.

Gradio's page compares each component with each listener when it opens, so fields that belong
together are drawn by `assets/fields.js`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from ..base.assets import SharedScript, script
from ..views import markup

FIELDS = SharedScript(script("fields.js"), "attachFields")


@dataclass(frozen=True)
class Field:
    """A field; its kind follows from its value: a flag, a number or a text.

    elem_id: of its element on the page. owner: repeated by the events of the field. choices: labels
    and values of a list; () for a box. low, high: limits of a number; None for no limit. step: of a
    slider; None for a number box. suggestions: of a text.
    """

    elem_id: str
    label: str
    value: Any
    info: str = ""
    owner: str = ""
    choices: tuple[tuple[str, Any], ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = None
    suggestions: tuple[str, ...] = ()
    placeholder: str = ""


@dataclass(frozen=True)
class FieldGroup:
    """Fields in one component. As an input of a listener, it is the list of their values.

    Events of `value`: `input` at each change except while a text is typed, and `blur` when a box
    with another value loses the focus or takes the key Enter, both with the id, the owner and the
    value of the field; `submit` of the button.
    """

    value: gr.HTML
    fields: tuple[Field, ...]

    def with_values(self, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the value of the component for these values of its fields."""
        return group_value(self.fields, values)


def field_group(
    elem_id: str,
    fields: Sequence[Field] = (),
    button: tuple[str, str] | None = None,
    intro: str = "",
    **settings: Any,
) -> FieldGroup:
    """Place fields, and a button below them.

    button: its id and label. intro: text above the fields, as in `markup.prose`.
    """
    value = gr.HTML(
        group_value(fields),
        html_template=markup.prose(intro),
        js_on_load=FIELDS.call,
        elem_id=elem_id,
        button=button,
        **settings,
    )
    value.fields = tuple(fields)  # checked and read by `entered_values`
    return FieldGroup(value, tuple(fields))


def entered_values(value: Any) -> Any:
    """Return the values of the fields in the value of a component; anything else is not changed."""
    if isinstance(value, list) and all(isinstance(field, dict) for field in value):
        return [field.get("value") for field in value]
    return value


def group_value(
    fields: Sequence[Field], values: Sequence[Any] | None = None
) -> list[dict[str, Any]]:
    """Return the value of a component with these fields. values: those of the fields by default."""
    entered = [field.value for field in fields] if values is None else values
    return [asdict(field) | {"value": value} for field, value in zip(fields, entered, strict=True)]
