"""Components built on gr.HTML: a plot that keeps its zoom, a panel with buttons, a downloader, and
hidden components that run scripts.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

import gradio as gr

import lrcore
from lrcore.system.as_json import json_text

from .. import words
from ..base import numbers
from ..base.assets import SharedScript, script

FLOW = "flow"  # class of an accordion whose fields are next to each other, as many as fit
PRIMARY, STOP = "primary", "stop"  # classes of a main button and of one that deletes
NONE: Mapping[str, str] = MappingProxyType({})
MAX_NUMBER = 10**9
MAX_TOKENS = 4096  # of one answer; a longer one would occupy the server for minutes


def plot_head() -> str:
    """Return the caption and the file types for saving, as HTML."""
    files = "".join(
        f"<button type='button' data-save='{kind}' data-mm='{mm}'>{label}</button>"
        for kind, mm, label in words.allocation.FILES
    )
    summary = f"<summary>{words.allocation.SAVE}</summary>"
    return f"<span></span><details>{summary}<div>{files}</div></details>"


PLOT = SharedScript(
    script(
        "plot.js",
        "plot-saving.js",
        HANDLE=words.allocation.HANDLE,
        CELLS=words.spectra.CELLS_BY_KEYBOARD,
        HEAD=plot_head(),
    ),
    "attachPlot",
)
BUTTONS = SharedScript(script("buttons.js"), "attachButtons")


def whole_number(value: float | None, label: str, maximum: int = MAX_NUMBER) -> int:
    """Return a typed number. Raises InputError for an empty field and a number above `maximum`."""
    if value is None:
        raise lrcore.InputError(f"'{label}' is empty. Enter a whole number.")
    if not isinstance(value, int | float) or not abs(value) <= maximum:  # also NaN
        raise lrcore.InputError(
            f"'{label}' is {str(value)[:40]}. Enter a whole number up to {numbers.count(maximum)}."
        )
    return round(value)


def plot(
    elem_id: str,
    height: int,
    value: str = "",
    awaited: bool = False,
    changes: Sequence[str] = (),
    help_line: str = "",
) -> gr.HTML:
    """Return a plot whose value is the JSON of a figure.

    Its `select` event has x, y, z and custom of the clicked point. The `focus` event of a heatmap
    has custom of the cell on which the pointer or the keyboard rests, or None once they left it.
    Above the plot are its caption and the file types for saving. awaited: a gray shape fills its
    space until the first figure arrives. changes: as in `panel`. help_line: HTML below the plot.
    """
    return gr.HTML(
        value,
        html_template="<div class='plot-head' hidden></div><div>"
        f"<div class='plot{' awaited' if awaited else ''}' style='width:100%;height:{height}px'>"
        f"</div></div>{help_line}",
        js_on_load=PLOT.call + when_visible_script(changes),
        elem_id=elem_id,
    )


def panel(
    elem_id: str, render: bool = True, value: str = "", changes: Sequence[str] = ()
) -> gr.HTML:
    """Return HTML whose elements with data-action send clicks as `select` events.

    changes: names, see `events.announce`, after which the `tick` event of `when_visible_script`
    comes.
    """
    script_on_load = BUTTONS.call + when_visible_script(changes)
    return gr.HTML(value, js_on_load=script_on_load, elem_id=elem_id, render=render)


def button_row(
    elem_id: str,
    labels: Mapping[str, str],
    classes: Mapping[str, str] = NONE,
    events: Mapping[str, str] = NONE,
) -> gr.HTML:
    """Return buttons in one component. Its event `select` has the id of the button as `action`.

    labels, classes, events: by id of the button. A button with an event has this event of gr.HTML
    in place of `select`.
    """
    return panel(elem_id, value=button_row_html(labels, classes=classes, events=events))


def button_row_html(
    labels: Mapping[str, str],
    disabled: Container[str] = (),
    classes: Mapping[str, str] = NONE,
    events: Mapping[str, str] = NONE,
) -> str:
    """Return the HTML of `button_row`. disabled: ids of buttons that cannot be pressed."""
    buttons = "".join(
        f"<button type='button' class='act {classes.get(name, '')}' id='{name}'"
        f" data-event='{events.get(name, 'select')}' data-action='{name}'"
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
    if files:
        has_server = "server_functions" in settings
        js = SharedScript(script(*files, **constants or {}), has_server=has_server).call
    return gr.HTML(
        value,
        html_template="<span></span>",
        js_on_load=js,
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
    js = _listen_to_changes(changes, only_visible=False)
    return hidden_component(elem_id, js=js, value=value)


def when_visible_script(changes: Sequence[str]) -> str:
    """Return a script for the js_on_load of a gr.HTML; "" without changes.

    Its `tick` event comes after changes like that of `after_changes`, but waits until the component
    is visible. It also comes when the component is first visible.
    """
    return _listen_to_changes(changes, only_visible=True) if changes else ""


def _listen_to_changes(changes: Sequence[str], only_visible: bool) -> str:
    events = json_text([change_event(name) for name in changes])
    return f"listenToChanges(element, trigger, {events}, {json_text(only_visible)}); // 'tick'"


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
