"""The path through the page in four steps, with one primary button: what to do next from the tab
on show.
"""

import json
from html import escape

import gradio as gr

from .assets import script

STEPS = (
    ("Spectra", "Analyse"),
    ("Allocation", "Allocate"),
    ("Compress", "Compress"),
    ("Compare", "Compare"),
)
NEXT = (
    ("Spectra", ("Next: set the ranks", "Allocation")),
    ("Allocation", ("Next: compress", "Compress")),
    ("Compress", ("Next: compare the answers", "Compare")),
)


def build() -> gr.HTML:
    """Its value, what `done` gives, says which steps are done; the button of the next step reports
    the tab that it opens, as `allocation`, `compress` or `compare`.
    """
    items = "".join(
        f"<li><button type='button'><span class='tick'>{i + 1}</span> {label}</button></li>"
        for i, (_, label) in enumerate(STEPS)
    )
    template = (
        f"<nav class='guide' aria-label='Steps' data-steps='{escape(json.dumps(STEPS))}' "
        f"data-next='{escape(json.dumps(NEXT))}'><ol>{items}</ol>"
        "<button type='button' class='next' hidden></button></nav>"
    )
    return gr.HTML(
        done(False, False, False),
        html_template=template,
        js_on_load=script("steps.js"),
        elem_id="guide",
    )


def done(analysed: bool, factored: bool, has_runs: bool) -> str:
    """The value that ticks the first steps; the last one is never done."""
    return json.dumps([analysed, factored, has_runs, False])
