"""Event listeners: settings, form data, failure messages and event values."""

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

import lrcore
from lrcore.system.as_json import json_text
from lrcore.system.path_access import strip_paths
from lrcore.system.resource_errors import resource_error

from .components import change_event, hidden_component
from .fields import FieldGroup

log = logging.getLogger("workbench")
REQUEST = "browser_request"  # the first parameter of every listener
BROWSER_COOKIE = "workbench-browser"  # see server/browser_cookie.py
_browser: ContextVar[str | None] = ContextVar("browser", default=None)

# Settings of listeners. No component shows progress: Gradio's page would otherwise update the state
# of all outputs of all events, several times per event.
QUIET: dict[str, Any] = {
    "api_visibility": "private",
    "show_progress": "hidden",
    "show_progress_on": [],
}
MAX_MESSAGE = 1000  # characters; a message may repeat user input
MESSAGE_SECONDS = 15  # time to read two sentences twice
LIVE = QUIET | {"trigger_mode": "always_last", "concurrency_limit": None}
# For a list whose listener compares the choice with the previous one: Gradio's page may report one
# choice twice at once. The second event waits for the first, and then finds nothing to do.
IN_TURN = LIVE | {"concurrency_limit": 1}
# For a slider that moves: the answer is the response to the request. Gradio's queue would send it
# through a stream, which would be opened and closed for each move.
MOVING = LIVE | {"queue": False}
# For figures that are redrawn after a change, when a page opens and when a slider is released. At
# most two are drawn at a time over all pages, so that few compete with a moving slider for the
# processor.
DRAWN = LIVE | {"concurrency_id": "figures", "concurrency_limit": 2}
# For a figure that needs many plans: one at a time over all pages.
SLOW = LIVE | {"concurrency_id": "slow figures", "concurrency_limit": 1}
# For buttons. By default Gradio's page drops a press while the previous one runs; with
# `always_last` it would repeat the previous one. One press runs at a time, so the last one wins.
PRESSED = QUIET | {"trigger_mode": "multiple"}


@dataclass(frozen=True)
class FormData:
    """Components whose values reach listeners as one list, in place of the hidden `value`.

    Gradio's page updates the status of every input of an event several times per event; with two
    dozen fields this would slow down every event of the page.
    """

    parts: list[gr.components.Component]
    value: gr.HTML


def form_data(elem_id: str, parts: list[gr.components.Component], values: list[Any]) -> FormData:
    """Return form data. values: the initial values of the parts."""
    value = hidden_component(elem_id, "form-values.js", value=values, constants={"FORM": elem_id})
    value.parts = parts  # `input_checks` checks their values
    answer = f"(...values) => forms[{json_text(elem_id)}].answer(values)"
    value.read(None, parts, None, js=answer, **QUIET)  # sent by form-values.js
    return FormData(parts, value)


def listen(
    events: list[Any] | gr.events.Dependency,
    handler: Callable,
    inputs: Any,
    outputs: Any,
    **settings: Any,
) -> gr.events.Dependency:
    """Attach a listener whose inputs may be FormData, which the browser reads at the event.

    events: several events, or a listener to follow. Gradio's page runs the listeners of an event of
    a component one after the other, and repeats all of them if one is triggered again meanwhile. If
    an event has several listeners, let them follow `together`, or they delay each other.
    """
    parts = inputs if isinstance(inputs, list) else [] if inputs is None else [inputs]
    forms = {i: part.value.elem_id for i, part in enumerate(parts) if isinstance(part, FormData)}
    js = f"(...inputs) => readForms(inputs, {json_text(forms)})" if forms else None
    joined = (FormData, FieldGroup)
    plain = [part.value if isinstance(part, joined) else part for part in parts]
    return _attach(events)(handler, plain, outputs, js=js, **settings)


def together(events: list[Any], inputs: Any = None, js: str | None = None) -> gr.events.Dependency:
    """Return a step at these events; all listeners that follow it start at the same time.

    js: runs in the browser, with the inputs.
    """
    return gr.on(events, None, inputs, None, js=js, **QUIET)


def announce(name: str, events: list[Any] | gr.events.Dependency) -> None:
    """Announce a change of this name to the `tick` events of components at these events."""
    dispatch = f"() => {{ document.dispatchEvent(new Event('{change_event(name)}')); }}"
    _attach(events)(None, None, None, js=dispatch, **QUIET)


def _attach(events: list[Any] | gr.events.Dependency) -> Callable[..., gr.events.Dependency]:
    return functools.partial(gr.on, events) if isinstance(events, list) else events.then


def bind(handler: Callable, *bound: Any) -> Callable:
    """Return a listener that calls a module-level `handler` with `bound` as its first arguments.

    A failure reaches the page as a sentence: the sentence of the core for wrong input, otherwise
    one line, with the details in the log. The listener takes the request first, so that
    `present_browser` works, and keeps the annotations of the remaining parameters, by which Gradio
    passes gr.Request, gr.EventData and gr.SelectData.
    """
    call = functools.partial(handler, *bound)
    listener: Any
    if inspect.isasyncgenfunction(handler):

        async def stream(request: Any, *values: Any) -> AsyncIterator[Any]:
            _browser.set(_browser_of(request))
            try:
                async for answer in call(*values):
                    yield answer
            except Exception as error:
                raise failure_message(error) from None

        listener = stream

    elif inspect.isgeneratorfunction(handler):

        def steps(request: Any, *values: Any) -> Iterator[Any]:
            try:
                answers = call(*values)
                while True:  # each step may run in another context
                    _browser.set(_browser_of(request))
                    yield next(answers)
            except StopIteration:
                return
            except Exception as error:
                raise failure_message(error) from None

        listener = steps

    else:

        def answer_once(request: Any, *values: Any) -> Any:
            _browser.set(_browser_of(request))
            try:
                return call(*values)
            except Exception as error:
                raise failure_message(error) from None

        listener = answer_once

    _describe_listener(listener, handler, call)
    return listener


def _describe_listener(listener: Any, handler: Callable, call: Callable) -> None:
    """Give a listener the signature of `call`, the handler without its bound parameters, with the
    request as the first parameter.
    """
    functools.update_wrapper(listener, handler)
    # Gradio derives endpoint names from it; the plain name belongs to the endpoint of `app/api.py`.
    listener.__name__ = f"on_{handler.__name__}"
    signature = inspect.signature(call)
    parameters = signature.parameters
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    request = inspect.Parameter(REQUEST, kind, annotation=gr.Request)
    listener.__signature__ = signature.replace(parameters=[request, *parameters.values()])
    listener.__annotations__ = {REQUEST: gr.Request} | {
        name: annotation
        for name, annotation in handler.__annotations__.items()
        if name in parameters or name == "return"
    }


def present_browser() -> str | None:
    """Return the browser whose event is being answered; None outside of events.

    It is the value of its cookie, or Gradio's id of the session if it sends no cookie.
    """
    return _browser.get()


def _browser_of(request: Any) -> str | None:
    cookies = getattr(request, "cookies", None) or {}
    return cookies.get(BROWSER_COOKIE) or getattr(request, "session_hash", None)


def failure_message(error: Exception) -> gr.Error:
    """Return the message for a failure in a handler.

    It is escaped, because Gradio shows HTML and the message may contain user input.
    """
    if isinstance(error, gr.Error):
        return error
    sentence = error if isinstance(error, lrcore.InputError) else resource_error(error)
    if sentence is not None:
        return _message(str(sentence))
    log.error("a handler failed", exc_info=error)
    line = (str(error).strip().splitlines() or [""])[0][:300]
    return _message(f"{type(error).__name__}: {line} The server's log has the details.")


def warn(sentence: str) -> None:
    """Show a warning about input that the page did not accept."""
    gr.Warning(escape(strip_paths(sentence), quote=False), duration=MESSAGE_SECONDS)


def _message(sentence: str) -> gr.Error:
    line = " ".join(strip_paths(sentence).split())
    line = line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}..."
    escaped = escape(line, quote=False)
    return gr.Error(escaped, print_exception=False, duration=MESSAGE_SECONDS)


class EventValues:
    """The values that a component sent with an event, by name.

    Every method raises InputError for a value that the page does not send.
    """

    def __init__(self, event: gr.EventData) -> None:
        self._event = event

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._event, name)
        except (AttributeError, TypeError):
            raise self.unclear(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return getattr(self._event, name)
        except AttributeError:
            return default
        except TypeError:  # the event sent no names at all
            raise self.unclear(name) from None

    def number(self, name: str) -> int:
        """Return a whole number, such as a layer index."""
        if not isinstance(self[name], int):
            raise self.unclear(name)
        return int(self[name])

    def listed(self, name: str) -> list[Any]:
        """Return a list; [] if the event does not name it."""
        if not isinstance(self.get(name), list | None):
            raise self.unclear(name)
        return self.get(name) or []

    @staticmethod
    def unclear(name: str) -> lrcore.InputError:
        """Return the error for a missing or unexpected value."""
        return lrcore.InputError(f"The event has no valid '{name}'. Reload the page and try again.")
