"""Components built on gr.HTML: a plot that keeps its zoom, a panel with buttons, a downloader, and
hidden components that run scripts.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr

import lrcore
from lrcore.system.as_json import json_text

from .. import words
from ..base import numbers
from ..base.assets import SharedScript, script

MAX_NUMBER = 10**9
MAX_TOKENS = 4096  # of one answer; a longer one would occupy the server for minutes

PLOT = SharedScript(
    "attachPlot",
    script(
        "plot.js",
        "plot-saving.js",
        HANDLE=words.allocation.HANDLE,
        CELLS=words.spectra.CELLS_BY_KEYBOARD,
    ),
)
BUTTONS = SharedScript("attachButtons", script("buttons.js"))


def whole_number(value: float | None, label: str, maximum: int = MAX_NUMBER) -> int:
    """Return a typed number. Raises InputError for an empty field and a number above `maximum`."""
    if value is None:
        raise lrcore.InputError(f"'{label}' is empty. Enter a whole number.")
    if not isinstance(value, int | float) or not abs(value) <= maximum:  # also NaN
        raise lrcore.InputError(
            f"'{label}' is {str(value)[:40]}. Enter a whole number up to {numbers.count(maximum)}."
        )
    return round(value)


def plot(elem_id: str, height: int, value: str = "", awaited: bool = False) -> gr.HTML:
    """Return a plot whose value is the JSON of a figure.

    Its `select` event has x, y, z and custom of the clicked point. The `focus` event of a heatmap
    has custom of the cell on which the pointer or the keyboard rests, or None once they left it.
    Above the plot are its caption and the file types for saving. awaited: a gray shape fills its
    space until the first figure arrives.
    """
    files = "".join(
        f"<button type='button' data-save='{kind}' data-mm='{mm}'>{label}</button>"
        for kind, mm, label in words.allocation.FILES
    )
    head = (
        f"<div class='plot-head' hidden><span></span><details><summary>"
        f"{words.allocation.SAVE}</summary><div>{files}</div></details></div>"
    )
    return gr.HTML(
        value,
        html_template=f"{head}<div><div class='plot{' awaited' if awaited else ''}' "
        f"style='width:100%;height:{height}px'></div></div>",
        js_on_load=PLOT.call,
        elem_id=elem_id,
    )


def panel(elem_id: str, render: bool = True, value: str = "") -> gr.HTML:
    """Return HTML whose elements with data-action send clicks as `select` events."""
    return gr.HTML(value, js_on_load=BUTTONS.call, elem_id=elem_id, render=render)


def button_row(elem_id: str, labels: Mapping[str, str]) -> gr.HTML:
    """Return buttons in one component. Its event `select` has the id of the button as `action`.

    labels: by id.
    """
    return panel(elem_id, value=button_row_html(labels))


def button_row_html(labels: Mapping[str, str], disabled: Container[str] = ()) -> str:
    """Return the HTML of `button_row`. disabled: ids of buttons that cannot be pressed."""
    buttons = "".join(
        f"<button type='button' class='act' id='{name}' data-action='{name}'"
        f"{' disabled' if name in disabled else ''}>{escape(label)}</button>"
        for name, label in labels.items()
    )
    return f"<div class='button-row'>{buttons}</div>"


def downloader() -> gr.HTML:
    """Return a hidden component: the value `download(...)` makes the browser save a file, and
    `download_from(...)` a file of the server.

    Nothing is written on the server.
    """
    return hidden_component("downloader", "download.js")


def pending_cells() -> gr.HTML:
    """Return a hidden component: JSON of {plan: html} replaces the cells with that data-plan."""
    return hidden_component("pending-cells", "pending.js")


def hidden_component(
    elem_id: str,
    *files: str,
    value: Any = "",
    constants: Mapping[str, Any] | None = None,
    js: str = "",
    **settings: Any,
) -> gr.HTML:
    """Return a component that shows nothing.

    files: scripts in assets that act on its value. constants: replaced in the scripts. js: a call
    of a script in the head of the page, in place of files.
    """
    return gr.HTML(
        value,
        html_template="<span></span>",
        js_on_load=js or script(*files, **constants or {}),
        elem_id=elem_id,
        elem_classes="unseen",
        **settings,
    )


def log_slider(elem_id: str) -> gr.HTML:
    """Return a hidden component that lays a logarithmic slider over the linear one with this id.

    A mark shows the automatic value.
    """
    constants = {
        "SLIDER": elem_id,
        "MARKED": words.allocation.AUTOMATIC,
        "LABEL": words.allocation.LOGARITHMIC,
    }
    return hidden_component(f"log-{elem_id}", "log-slider.js", constants=constants)


def after_changes(elem_id: str, *changes: str, value: Any = "") -> gr.HTML:
    """Return a hidden component whose `tick` event comes 0.2 s after the last of several changes.

    changes: names, see `events.announce`.
    """
    return _change_listener(elem_id, changes, only_visible=False, value=value)


def when_visible(elem_id: str, *changes: str) -> gr.HTML:
    """Return a component like `after_changes` whose event waits until its surroundings are visible.

    It also comes when they are first visible.
    """
    return _change_listener(elem_id, changes, only_visible=True)


def _change_listener(
    elem_id: str, changes: Sequence[str], only_visible: bool, value: Any = ""
) -> gr.HTML:
    events = json_text([change_event(name) for name in changes])
    call = f"listenToChanges(element, trigger, {events}, {json_text(only_visible)}); // 'tick'"
    return hidden_component(elem_id, js=call, value=value)


def change_event(name: str) -> str:
    """Return the name of the DOM event of a change."""
    return f"workbench:{name}"


def heartbeat(elem_id: str, version: Callable[[], str], runs: Callable[[], bool]) -> gr.HTML:
    """Return a hidden component whose `tick` event comes when the content of the page may change.

    It comes when `version()` returns a new value, and for some seconds after a user action; one
    `wake` event follows some seconds later. The browser reads the version outside Gradio's queue:
    every second while `runs()` is true, otherwise every five seconds, and never while the page is
    hidden. Both functions must be fast.
    """

    def version_now(_: Any = None) -> tuple[str, bool]:
        return version(), runs()

    return hidden_component(elem_id, "heartbeat.js", server_functions=[version_now])


def small_button(label: str, elem_id: str, width: int = 110, **settings: Any) -> gr.Button:
    """Return a small button for a row of controls, at least `width` pixels wide."""
    return gr.Button(label, size="sm", elem_id=elem_id, scale=0, min_width=width, **settings)


_downloads = iter(range(10**12))


def download(name: str, text: str) -> str:
    """Return the value of the downloader that makes the browser save `text` as a file."""
    # the count makes two downloads of the same file two changes
    return json_text({"name": name, "text": text, "count": next(_downloads)})


def download_from(address: str, name: str) -> str:
    """Return the value of the downloader that makes the browser save a file of this server."""
    return json_text({"name": name, "address": address, "count": next(_downloads)})
