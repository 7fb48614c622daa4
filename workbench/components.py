"""Own components on gr.HTML: a plot that keeps its zoom and reports clicks, a panel with buttons,
a downloader.
"""

from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

import lrcore

from . import hand_text, numbers, saving_text, text
from .assets import script

MOST = 10**9  # that is typed where nothing lower is known
MOST_TOKENS = 4096  # of one answer: a longer one would hold its place for minutes


def reading(kind: type, preprocess: Callable[[Any, Any], Any]) -> Any:
    """The component, giving handlers what `preprocess` makes of what the browser sent.

    ABCMeta makes the class because Gradio's metaclass would write a .pyi file.
    """
    fields = {"is_template": True, "preprocess": preprocess}
    return ABCMeta.__new__(type(kind), kind.__name__, (kind,), fields)


def as_sent(_: Any, value: Any) -> Any:
    """None and numbers beyond the range as well: handlers say in a sentence what is wrong, where
    Gradio's own message names no remedy, and a range that follows the model may change while a
    number is on its way.
    """
    return value


def as_text(_: Any, value: Any) -> str:
    """A box that nobody has typed into is empty: the browser sends None until it was drawn."""
    return "" if value is None else str(value)


Slider, Number = reading(gr.Slider, as_sent), reading(gr.Number, as_sent)
Textbox = reading(gr.Textbox, as_text)


def whole(value: float | None, what: str, most: int = MOST) -> int:
    """The number that was typed. Raises InputError for an empty box, and beyond `most`."""
    if value is None:
        raise lrcore.InputError(f"'{what}' is empty. Type a whole number.")
    if not isinstance(value, int | float) or not abs(value) <= most:  # nor what is no number
        raise lrcore.InputError(
            f"'{what}' is {str(value)[:40]}. Type a whole number up to {numbers.count(most)}."
        )
    return round(value)


def plot(elem_id: str, height: int, value: str = "", awaited: bool = False) -> gr.HTML:
    """A figure; its value is the JSON of a figure dict, its `select` event gives x, y, z, custom
    of the point clicked. Above it are its caption and a list of the files that it is saved as.
    awaited: a grey shape stands in its place until it is drawn first.
    """
    files = "".join(
        f"<button type='button' data-save='{kind}' data-mm='{mm}'>{label}</button>"
        for kind, mm, label in saving_text.FILES
    )
    head = (
        f"<div class='plot-head' hidden><span></span><details><summary>"
        f"{saving_text.SAVE}</summary><div>{files}</div></details></div>"
    )
    return gr.HTML(
        value,
        html_template=f"{head}<div><div class='plot{' awaited' if awaited else ''}' "
        f"style='width:100%;height:{height}px'></div></div>",
        js_on_load=script("plot.js", "plot-saving.js", HANDLE=hand_text.HANDLE),
        elem_id=elem_id,
    )


def panel(elem_id: str, render: bool = True, value: str = "") -> gr.HTML:
    """HTML whose elements with data-action report clicks through `select`."""
    return gr.HTML(value, js_on_load=script("buttons.js"), elem_id=elem_id, render=render)


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


def unseen(
    elem_id: str, *files: str, value: str = "", words: Mapping[str, Any] | None = None, **more: Any
) -> gr.HTML:
    """A component that shows nothing: these scripts in assets, with these words in them, act on its
    value.
    """
    return gr.HTML(
        value,
        html_template="<span></span>",
        js_on_load=script(*files, **words or {}),
        elem_id=elem_id,
        elem_classes="unseen",
        **more,
    )


def log_slider(elem_id: str) -> gr.HTML:
    """Unseen; lays a logarithmic slider over the linear one of this id, with which it is shown. A
    mark stands at what the slider's explanation calls the rule of thumb.
    """
    words = {"SLIDER": elem_id, "MARKED": text.RULE_OF_THUMB, "LABEL": text.LOGARITHMIC}
    return unseen(f"log-{elem_id}", "log-slider.js", words=words)


def at_rest(elem_id: str, *changes: str) -> gr.HTML:
    """Unseen; its `tick` event comes a fifth of a second after the last of several changes, of any
    of these names. See `events.announce`.
    """
    return _told(elem_id, changes, watched=False)


def in_sight(elem_id: str, *changes: str) -> gr.HTML:
    """As `at_rest`, but while nobody looks at what holds it the event waits until somebody does;
    it comes when that is seen first.
    """
    return _told(elem_id, changes, watched=True)


def _told(elem_id: str, changes: Sequence[str], watched: bool) -> gr.HTML:
    words = {"CHANGES": [change_event(name) for name in changes], "WATCHED": watched}
    return unseen(elem_id, "told.js", words=words)


def change_event(name: str) -> str:
    """The DOM event that says so of a change."""
    return f"workbench:{name}"


def heartbeat(elem_id: str, version: Callable[[], str], runs: Callable[[], bool]) -> gr.HTML:
    """Unseen; its `tick` event comes while what the page shows may change: once `version()` gives
    something new, and for some seconds after a person does something. Some seconds after a `tick`
    comes one `wake`.

    A page asks for the version past Gradio's queue, every second while something `runs()`, else
    every five, and not at all while nobody sees it. Both functions must be cheap.
    """

    def version_now(_: Any = None) -> tuple[str, bool]:
        return version(), runs()

    return unseen(elem_id, "heartbeat.js", server_functions=[version_now])


def small_button(label: str, elem_id: str, width: int = 110, **more: Any) -> gr.Button:
    """A small button beside other controls of a row, at least `width` pixels wide."""
    return gr.Button(label, size="sm", elem_id=elem_id, scale=0, min_width=width, **more)


_downloads = iter(range(10**12))


def download(name: str, text: str) -> str:
    """What to write into the downloader so that the browser saves `text` as a file."""
    # the count makes the same file twice two changes
    return lrcore.json_text({"name": name, "text": text, "count": next(_downloads)})
