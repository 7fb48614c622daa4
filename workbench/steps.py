"""The path through the page: ticks on the tabs whose step is done, and one primary button, what to
do next from the tab on show.
"""

import json
from html import escape

import gradio as gr

from .assets import script

STEPS = ("Spectra", "Allocation", "Compress", "Compare")  # titles of tabs
NEXT = (
    ("Spectra", ("Next: set the ranks", "Allocation")),
    ("Allocation", ("Next: compress", "Compress")),
    ("Compress", ("Next: compare the answers", "Compare")),
)


def build() -> gr.HTML:
    """Its value, what `done` gives, says which steps are done; the button of the next step reports
    the tab that it opens, as `allocation`, `compress` or `compare`.
    """
    template = (
        f"<div class='guide' data-steps='{escape(json.dumps(STEPS, allow_nan=False))}' "
        f"data-next='{escape(json.dumps(NEXT, allow_nan=False))}'>"
        "<button type='button' class='next' hidden></button></div>"
    )
    return gr.HTML(
        done(False, False, False),
        html_template=template,
        js_on_load=script("steps.js"),
        elem_id="guide",
    )


def done(analysed: bool, factored: bool, has_runs: bool) -> str:
    """The value that ticks the first steps; the last one is never done."""
    return json.dumps([analysed, factored, has_runs, False], allow_nan=False)
