"""What a browser or a script sends for the fields of the page, before a listener is given it: what
no component can hold is answered with a sentence, and nothing of it is logged as a fault.
"""

import reprlib
from html import escape
from typing import Any

import gradio as gr
import orjson

SHOWN = 200  # characters of a reason
LARGE = 2**53  # whole numbers up to it are those of the browser; an answer holds few beyond
CHOSEN = CHOICE, CHOICES = "one choice", "choices"
UNREADABLE = (
    "What was typed holds half a character (a surrogate), or a number of more than 19 digits, "
    "which no page can show. Copy the text again from where it is whole, or type it."
)


def check_event(listener: Any, inputs: Any, said: Any) -> None:
    """Raise gr.Error for values that no answer could hold: one that repeats them would end the
    stream of all answers to a page. And where a row was selected, and the event does not say which.
    """
    try:
        orjson.dumps((inputs, said))
    except (TypeError, RecursionError):
        raise gr.Error(UNREADABLE, print_exception=False) from None
    selects = (
        gr.SelectData in getattr(getattr(listener, "fn", None), "__annotations__", {}).values()
    )
    if selects and not (isinstance(said, dict) and {"index", "value"} <= said.keys()):
        raise refusal(ValueError("the event does not say which row was selected"))


def check_held(component: Any, value: Any, state: Any = None) -> None:
    """Raise gr.Error for a value of another type than the component's, a choice that it does not
    offer, and the collected values of a form that has other parts. None is a field that nobody has
    drawn or filled. state: of the page, which may have other choices by now, and a value that the
    browser has not shown yet.
    """
    if getattr(component, "stateful", False):  # what is sent for it is not read
        return
    parts, opened_with = getattr(component, "parts", None), getattr(component, "value", None)
    if state is not None and component._id in state:
        component = state[component._id]
    if parts is not None:
        if not isinstance(value, list) or len(value) != len(parts):
            raise refusal(ValueError(f"the form has {len(parts)} fields, got {_brief(value)}"))
        for part, own in zip(parts, value, strict=True):
            check_held(part, own, state)
        return
    kind, name = _kind(component), getattr(component, "label", "") or component.elem_id
    if value is None:
        if isinstance(component, gr.UploadButton):
            raise refusal(ValueError(f"'{name}' takes a file, got none"))
        if kind in CHOSEN and opened_with is not None and not _is_typed(component):
            raise refusal(ValueError(f"'{name}' takes {kind}, got none"))
    elif kind and not _is(kind, value):
        raise refusal(ValueError(f"'{name}' takes {kind}, got {_brief(value)}"))
    elif kind in CHOSEN and not _offered(component, value):
        raise refusal(ValueError(f"'{name}' does not offer {_brief(value)}"))


def _offered(component: Any, value: Any) -> bool:
    """Whether a field has these choices, or takes any text."""
    values = value if isinstance(value, list) else [value]
    known = [choice for _, choice in component.choices]
    typed = _is_typed(component)
    return all(one in known or (typed and isinstance(one, str)) for one in values)


def _is_typed(component: Any) -> bool:
    return bool(getattr(component, "allow_custom_value", False))


def refusal(error: Exception) -> gr.Error:
    """The message for values that the components of an event cannot hold: they are not those that
    its fields offer, or not as many.
    """
    reason = " ".join((str(getattr(error, "message", "")) or str(error)).split())
    reason = reason if len(reason) <= SHOWN else f"{reason[:SHOWN]}..."
    sentence = (
        f"A field was given what it cannot hold ({reason.rstrip('.')}). Choose again; where that "
        "does not help, reload the page."
    )
    return gr.Error(escape(sentence, quote=False), print_exception=False)


def _kind(component: Any) -> str:
    """What a component holds, in a few words; "" where Gradio's own check is enough."""
    if isinstance(component, gr.Textbox):
        return "text"
    if isinstance(component, gr.Number | gr.Slider):
        return "a number"
    if isinstance(component, gr.Checkbox):
        return "true or false"
    if isinstance(component, gr.Dropdown):
        return CHOICES if component.multiselect else CHOICE
    if isinstance(component, gr.JSON) and isinstance(component.value, dict):
        return "a mapping of names to values"
    return CHOICE if isinstance(component, gr.Radio) else ""


def _is(kind: str, value: Any) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "true or false":
        return isinstance(value, bool)
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGE
    if kind == "a number":
        return number
    if kind == CHOICE:
        return number or isinstance(value, str)
    if kind == CHOICES:
        return isinstance(value, list) and all(_is(CHOICE, one) for one in value)
    return isinstance(value, dict)


def _brief(value: Any) -> str:
    return reprlib.repr(value)
