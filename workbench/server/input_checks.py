"""Checks of the values that a browser or a script sends for the components of the page.

Gradio checks few of them. A value that a component cannot hold is answered with one sentence, and
is not logged as a fault of the server.
"""

import reprlib
from html import escape
from typing import Any

import gradio as gr
import orjson

from ..widgets.fields import Field, entered_values

MAX_REASON = 200  # characters
LARGEST_NUMBER = 2**53  # browsers are exact only for whole numbers below this
CHOICE, CHOICES = "one choice", "choices"
TEXT, NUMBER, FLAG, MAPPING = "text", "a number", "true or false", "a mapping of names to values"
NOT_JSON = (
    "The text contains half a character (a surrogate) or a number of more than 19 digits, which no "
    "page can show. Copy the text again, or type it."
)


def check_event(listener: Any, inputs: Any, event_data: Any) -> None:
    """Raise gr.Error for values that no answer can repeat, and for a selection without its row.

    An answer that repeats such values would end the stream of all answers to the page.
    """
    try:
        orjson.dumps((inputs, event_data))
    except (TypeError, RecursionError):
        raise gr.Error(NOT_JSON, print_exception=False) from None
    annotations = getattr(getattr(listener, "fn", None), "__annotations__", {})
    is_selection = gr.SelectData in annotations.values()
    has_row = isinstance(event_data, dict) and {"index", "value"} <= event_data.keys()
    if is_selection and not has_row:
        raise invalid_value(ValueError("the event does not name the selected row"))


def check_value(component: Any, value: Any, state: Any = None) -> None:
    """Raise gr.Error for a value of a wrong type, a choice that is not offered, and form values
    that do not match the fields of the form. None is a field that was not filled in.

    state: of the page, whose components may have other choices by now.
    """
    if getattr(component, "stateful", False):  # its value stays on the server
        return
    if isinstance(component, Field):
        _check_field(component, value)
        return
    fields, initial = getattr(component, "parts", None), getattr(component, "value", None)
    if group := getattr(component, "fields", None):
        fields, value = group, entered_values(value)
    if state is not None and component._id in state:
        component = state[component._id]
    if fields is not None:
        if not isinstance(value, list) or len(value) != len(fields):
            raise invalid_value(
                ValueError(f"the form has {len(fields)} fields, got {reprlib.repr(value)}")
            )
        for field, field_value in zip(fields, value, strict=True):
            check_value(field, field_value, state)
        return
    kind, name = _kind(component), getattr(component, "label", "") or component.elem_id
    is_choice = kind in (CHOICE, CHOICES)
    if value is None:
        if isinstance(component, gr.UploadButton):
            raise invalid_value(ValueError(f"'{name}' takes a file, got none"))
        if is_choice and initial is not None and not _takes_any_text(component):
            raise invalid_value(ValueError(f"'{name}' takes {kind}, got none"))
    elif kind and not _has_type(kind, value):
        raise invalid_value(ValueError(f"'{name}' takes {kind}, got {reprlib.repr(value)}"))
    elif is_choice and not _is_offered(component, value):
        raise invalid_value(ValueError(f"'{name}' does not offer {reprlib.repr(value)}"))


def _check_field(field: Field, value: Any) -> None:
    """Raise gr.Error for a value that a field of a group cannot hold."""
    if field.choices:
        if value not in [choice for _, choice in field.choices]:
            raise invalid_value(ValueError(f"'{field.label}' does not offer {reprlib.repr(value)}"))
        return
    kind = (
        FLAG if isinstance(field.value, bool) else TEXT if isinstance(field.value, str) else NUMBER
    )
    if not _has_type(kind, value) and not (value is None and kind == NUMBER):
        raise invalid_value(ValueError(f"'{field.label}' takes {kind}, got {reprlib.repr(value)}"))


def invalid_value(error: Exception) -> gr.Error:
    """Return the message for values that the components of an event cannot hold."""
    reason = " ".join((str(getattr(error, "message", "")) or str(error)).split())
    reason = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}..."
    sentence = (
        f"A field got a value that it cannot hold ({reason.rstrip('.')}). Choose again, or reload "
        "the page."
    )
    return gr.Error(escape(sentence, quote=False), print_exception=False)


def _is_offered(component: Any, value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    choices = [choice for _, choice in component.choices]
    any_text = _takes_any_text(component)
    return all(v in choices or (any_text and isinstance(v, str)) for v in values)


def _takes_any_text(component: Any) -> bool:
    return bool(getattr(component, "allow_custom_value", False))


def _kind(component: Any) -> str:
    """Return the kind of value that a component holds; "" if Gradio's check is enough."""
    if isinstance(component, gr.Textbox):
        return TEXT
    if isinstance(component, gr.Number | gr.Slider):
        return NUMBER
    if isinstance(component, gr.Checkbox):
        return FLAG
    if isinstance(component, gr.Dropdown):
        return CHOICES if component.multiselect else CHOICE
    if isinstance(component, gr.JSON) and isinstance(component.value, dict):
        return MAPPING
    return CHOICE if isinstance(component, gr.Radio) else ""


def _has_type(kind: str, value: Any) -> bool:
    if kind == TEXT:
        return isinstance(value, str)
    if kind == FLAG:
        return isinstance(value, bool)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_number = is_number and abs(value) < LARGEST_NUMBER
    if kind == NUMBER:
        return is_number
    if kind == CHOICE:
        return is_number or isinstance(value, str)
    if kind == CHOICES:
        return isinstance(value, list) and all(_has_type(CHOICE, v) for v in value)
    return isinstance(value, dict)
