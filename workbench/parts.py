"""Own components on gr.HTML: a plot that keeps its zoom and reports clicks, a panel with
buttons, a downloader.
"""

import functools
import inspect
import json
import logging
from collections.abc import Callable
from typing import Any

import gradio as gr

import lrcore

from .assets import PLOTLY_JS, script

log = logging.getLogger("workbench")

QUIET = {"api_visibility": "private", "show_progress": "hidden"}
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


def late_cells() -> gr.HTML:
    """Unseen; writing the JSON of {plan: html} into it exchanges the cells on the page that name
    these plans in data-plan.
    """
    return unseen("pending-cells", "pending.js")


def unseen(elem_id: str, *files: str, value: str = "") -> gr.HTML:
    """A component that shows nothing: these scripts in assets act on its value."""
    return gr.HTML(
        value,
        html_template="<span></span>",
        js_on_load=script(*files),
        elem_id=elem_id,
        elem_classes="unseen",
    )


_downloads = iter(range(10**12))


def download(name: str, text: str) -> str:
    return json.dumps(
        {"name": name, "text": text, "count": next(_downloads)}
    )  # the count makes the same file twice two changes


def clicked(event: gr.EventData) -> dict[str, Any]:
    """What the component's `trigger` sent."""
    return event._data or {}


def spoken(handler: Callable) -> Callable:
    """A listener whose failures reach the reader as a sentence: the core's own for wrong input,
    one line and a log otherwise.
    """

    def say(error: Exception) -> gr.Error:
        if isinstance(error, gr.Error):
            return error
        if isinstance(error, lrcore.InputError):
            return gr.Error(str(error), print_exception=False, duration=None)
        log.error("a listener failed", exc_info=error)
        line = (str(error).strip().splitlines() or [""])[0][:300]
        return gr.Error(
            f"{type(error).__name__}: {line} The server's log has the details.",
            print_exception=False,
            duration=None,
        )

    if inspect.isgeneratorfunction(handler):

        @functools.wraps(handler)
        def stream(*args: Any, **kwargs: Any) -> Any:
            try:
                yield from handler(*args, **kwargs)
            except Exception as error:
                raise say(error) from None

        return stream

    @functools.wraps(handler)
    def once(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except Exception as error:
            raise say(error) from None

    return once
