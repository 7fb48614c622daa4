"""The steps of the page: check marks on finished tabs, and a button for the next step."""

import json
from html import escape

import gradio as gr

from ..base.assets import script

STEPS = ("Spectra", "Allocation", "Compress", "Compare")  # titles of tabs
NEXT = (
    ("Spectra", ("Next: set the ranks", "Allocation")),
    ("Allocation", ("Next: compress", "Compress")),
    ("Compress", ("Next: compare the answers", "Compare")),
)


def build() -> gr.HTML:
    """Return the component. Its value is that of `done`; its button names the tab that it opens."""
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


def done(analyzed: bool, factored: bool, has_runs: bool) -> str:
    """Return the value with a check mark per finished step; the last step is never finished."""
    return json.dumps([analyzed, factored, has_runs, False], allow_nan=False)
