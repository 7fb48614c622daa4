"""How handlers are attached to events: what a listener is given, and what a failure says."""

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
from gradio.context import LocalContext

import lrcore

from .components import change_event

log = logging.getLogger("workbench")

# An event without a sign of progress names no component that shows one: Gradio's page would go
# through the states of all outputs of all events, several times for each event.
QUIET = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
LONGEST = 1000  # characters of a message: it may repeat what was typed
SECONDS = 15  # that a message of what went wrong stays: time to read two sentences twice
LIVE = QUIET | {"trigger_mode": "always_last", "concurrency_limit": None}
# Of what follows a slider while it moves: the answer is that of the request itself. From Gradio's
# queue it would come by a stream, which the server ends and the page opens anew all the time.
MOVING = LIVE | {"queue": False}
# Of what is drawn anew after a change, when a page opens and when a slider is released: a few such
# events at a time, of all pages, so that those of a slider that moves share the processor with few.
DRAWN = LIVE | {"concurrency_id": "figures", "concurrency_limit": 2}
# Of a figure for which many plans are made: one such event at a time, of all pages, so that a
# slider of another page need not wait for several.
SLOW = LIVE | {"concurrency_id": "slow figures", "concurrency_limit": 1}
# Of an event that says what was pressed. Gradio's page drops a press while it answers the one
# before, or, with `always_last`, repeats that one. One runs at a time, so the last press counts.
PRESSED = QUIET | {"trigger_mode": "multiple"}


@dataclass(frozen=True)
class FormData:
    """Components whose values listeners take as one list, through the unseen component `value`.

    Gradio's page draws the status of every component that was ever an input, several times for
    each event: a form of two dozen fields would make every event of the page slow.
    """

    parts: list[gr.components.Component]
    value: gr.JSON


def form_data(parts: list[gr.components.Component], values: list[Any]) -> FormData:
    """values: of the parts as the page opens."""
    value = gr.JSON(values, visible=False)
    value.parts = parts  # by which `outside_values` checks what is sent
    return FormData(parts, value)


def listen(
    events: list[Any] | gr.events.Dependency,
    handler: Callable,
    inputs: Any,
    outputs: Any,
    **settings: Any,
) -> gr.events.Dependency:
    """A listener that runs by itself, as gr.on(events, handler, ...) does not where an event has
    several; inputs may hold FormData. events: several, or a listener to follow.

    Gradio's page runs the listeners of one event one after the other, and where one of them was
    asked for again meanwhile, it repeats the whole event. A slow figure would then hold up what
    changes the form, and repeat it later over what was chosen since. Each handler therefore follows
    a step of its own in the browser, which collects the form data. It gets no event data.
    """
    given = inputs if isinstance(inputs, list) else [] if inputs is None else [inputs]
    first = collect(events, [part for part in given if isinstance(part, FormData)])
    return first.then(handler, plain(given), outputs, **settings)


def announce(name: str, events: list[Any]) -> None:
    """At these events the browser tells the components made by `components.at_rest` and `in_sight`
    that what they are told of by this name has changed.
    """
    told = f"() => {{ document.dispatchEvent(new Event('{change_event(name)}')); }}"
    gr.on(events, None, None, None, js=told, **QUIET)


def plain(inputs: list[Any]) -> list[gr.components.Component]:
    """The inputs as Gradio takes them."""
    return [part.value if isinstance(part, FormData) else part for part in inputs]


def collect(
    events: list[Any] | gr.events.Dependency, forms: list[FormData]
) -> gr.events.Dependency:
    """At these events the browser puts the values of each form's parts into its `value`."""
    attach = functools.partial(gr.on, events) if isinstance(events, list) else events.then
    parts = [part for form in forms for part in form.parts]
    values = [form.value for form in forms]
    lengths = [len(form.parts) for form in forms]
    js = f"(...parts) => {lengths}.map(length => parts.splice(0, length))" if forms else None
    return attach(None, parts or None, values or None, js=js, **QUIET)


def bind(handler: Callable, *given: Any) -> Callable:
    """A module-level `handler` as a listener, its first arguments given.

    A failure reaches the reader as a sentence: the core's own for wrong input, one line and a log
    otherwise. The result keeps the annotations of the arguments that are left, by which Gradio
    passes gr.Request, gr.EventData and gr.SelectData.
    """
    call = functools.partial(handler, *given)
    if inspect.isasyncgenfunction(handler):

        async def listener(*values: Any) -> AsyncIterator[Any]:
            try:
                async for one in call(*values):
                    yield one
            except Exception as error:
                raise shown(error) from None

    elif inspect.isgeneratorfunction(handler):

        def listener(*values: Any) -> Iterator[Any]:
            try:
                yield from call(*values)
            except Exception as error:
                raise shown(error) from None

    else:

        def listener(*values: Any) -> Any:
            try:
                return call(*values)
            except Exception as error:
                raise shown(error) from None

    functools.update_wrapper(listener, handler)
    listener.__name__ = f"on_{handler.__name__}"  # an endpoint of that name keeps it
    left = inspect.signature(call)  # without the arguments given
    listener.__signature__ = left
    listener.__annotations__ = {
        name: kind
        for name, kind in handler.__annotations__.items()
        if name in left.parameters or name == "return"
    }
    return listener


def shown(error: Exception) -> gr.Error:
    """The message on the page for a failure in a handler. Gradio shows it as HTML, and it may name
    what a person typed, so it is escaped.
    """
    if isinstance(error, gr.Error):
        return error
    sentence = error if isinstance(error, lrcore.InputError) else lrcore.shortage(error)
    if sentence is not None:
        return _message(str(sentence))
    log.error("a handler failed", exc_info=error)
    line = (str(error).strip().splitlines() or [""])[0][:300]
    return _message(f"{type(error).__name__}: {line} The server's log has the details.")


def warn(sentence: str) -> None:
    """A message on the page for what a person typed and the page did not take."""
    gr.Warning(escape(lrcore.without_paths(sentence), quote=False), duration=SECONDS)


def _message(sentence: str) -> gr.Error:
    line = " ".join(lrcore.without_paths(sentence).split())
    line = line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
    escaped = escape(line, quote=False)
    return gr.Error(escaped, print_exception=False, duration=SECONDS)


def present_browser() -> str | None:
    """The page whose event is being answered, by Gradio's id of its session; None outside."""
    return getattr(LocalContext.request.get(None), "session_hash", None)


class Said(dict[str, Any]):
    """What an event says, by name. Raises InputError where it does not say what is asked for."""

    def __missing__(self, name: str) -> Any:
        raise self.unclear(name)

    def number(self, name: str) -> int:
        """A whole number, such as a layer. Raises InputError for what is none."""
        if not isinstance(self[name], int):
            raise self.unclear(name)
        return int(self[name])

    def listed(self, name: str) -> list[Any]:
        """A list; empty where nothing is said. Raises InputError for what is none."""
        if not isinstance(self.get(name), list | None):
            raise self.unclear(name)
        return self.get(name) or []

    @staticmethod
    def unclear(name: str) -> lrcore.InputError:
        """The error (returned, not raised) for something that is said otherwise."""
        return lrcore.InputError(
            f"The event does not say its '{name}' as the page does. Reload the page, and press "
            "again."
        )


def event_data(event: gr.EventData) -> Said:
    """What the component's `trigger` sent. Raises InputError for what is no mapping."""
    if not isinstance(event._data, dict | None):
        raise lrcore.InputError("The event says nothing by name. Reload the page, and press again.")
    return Said(event._data or {})
