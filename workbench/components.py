"""Own components on gr.HTML (a plot that keeps its zoom and reports clicks, a panel with buttons,
a downloader), and how handlers are attached to events.
"""

import functools
import inspect
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from html import escape
from typing import Any

import gradio as gr

import lrcore

from .assets import PLOTLY_JS, script

log = logging.getLogger("workbench")

# An event without a sign of progress names no component that shows one: Gradio's page would go
# through the states of all outputs of all events, several times for each event.
QUIET = {"api_visibility": "private", "show_progress": "hidden", "show_progress_on": []}
LIVE = QUIET | {"trigger_mode": "always_last", "concurrency_limit": None}


def listen(
    events: list[Any], handler: Callable, inputs: Any, outputs: Any, **settings: Any
) -> gr.events.Dependency:
    """A listener that runs by itself, as gr.on(events, handler, ...) does not where an event has
    several.

    Gradio's page runs the listeners of one event one after the other, and where one of them was
    asked for again meanwhile, it repeats the whole event. A slow figure would then hold up what
    changes the form, and repeat it later over what was chosen since. Each handler therefore follows
    an empty step of its own. It gets no event data.
    """
    return gr.on(events, None, None, None, **QUIET).then(handler, inputs, outputs, **settings)


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
    if isinstance(error, lrcore.InputError):
        return gr.Error(escape(str(error), quote=False), print_exception=False, duration=None)
    log.error("a handler failed", exc_info=error)
    line = (str(error).strip().splitlines() or [""])[0][:300]
    message = f"{type(error).__name__}: {line} The server's log has the details."
    return gr.Error(escape(message, quote=False), print_exception=False, duration=None)


def plot(elem_id: str, height: int) -> gr.HTML:
    """A figure; its value is the JSON of a figure dict, its `select` event gives x, y, z, custom
    of the point clicked.
    """
    return gr.HTML(
        "",
        html_template=f"<div class='plot' style='width:100%;height:{height}px'></div>",
        js_on_load=script("plot.js"),
        head=f'<script src="/gradio_api/file={PLOTLY_JS}"></script>',
        elem_id=elem_id,
    )


def panel(elem_id: str, render: bool = True) -> gr.HTML:
    """HTML whose elements with data-action report clicks through `select`."""
    return gr.HTML("", js_on_load=script("buttons.js"), elem_id=elem_id, render=render)


def downloader() -> gr.HTML:
    """Unseen; writing download(...) into it makes the browser save a file.

    Nothing is written on the server.
    """
    return unseen("downloader", "download.js")


def pending_cells() -> gr.HTML:
    """Unseen; writing the JSON of {plan: html} into it exchanges the cells on the page that name
    these plans in data-plan.
    """
    return unseen("pending-cells", "pending.js")


def unseen(elem_id: str, *files: str, value: str = "", **more: Any) -> gr.HTML:
    """A component that shows nothing: these scripts in assets act on its value."""
    return gr.HTML(
        value,
        html_template="<span></span>",
        js_on_load=script(*files),
        elem_id=elem_id,
        elem_classes="unseen",
        **more,
    )


def heartbeat(elem_id: str, version: Callable[[], str]) -> gr.HTML:
    """Unseen; its `tick` event comes while what the page shows may change: a second after
    `version()`, which must be cheap, gives something new, and for some seconds after a person does
    something. A page at rest asks for the version alone, past Gradio's queue, which costs the
    browser next to nothing.
    """

    def version_now(_: Any = None) -> str:
        return version()

    return unseen(elem_id, "heartbeat.js", server_functions=[version_now])


def small_button(label: str, elem_id: str, width: int = 110, **more: Any) -> gr.Button:
    """A small button beside other controls of a row, at least `width` pixels wide."""
    return gr.Button(label, size="sm", elem_id=elem_id, scale=0, min_width=width, **more)


_downloads = iter(range(10**12))


def download(name: str, text: str) -> str:
    """What to write into the downloader so that the browser saves `text` as a file."""
    # the count makes the same file twice two changes
    return json.dumps({"name": name, "text": text, "count": next(_downloads)})


def event_data(event: gr.EventData) -> dict[str, Any]:
    """What the component's `trigger` sent."""
    return event._data or {}
