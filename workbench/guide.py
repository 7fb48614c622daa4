"""The path through the page in four steps, with one primary button: what to do next from the tab
on show.
"""

import json
from html import escape

import gradio as gr

from .assets import script
from .session import Session

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
    """Its value, what `said` gives, says which steps are done."""
    steps = "".join(
        f"<li><button type='button'><span class='tick'>{i + 1}</span> {label}</button></li>"
        for i, (_, label) in enumerate(STEPS)
    )
    template = (
        f"<nav class='guide' aria-label='Steps' data-steps='{escape(json.dumps(STEPS))}' "
        f"data-next='{escape(json.dumps(NEXT))}'><ol>{steps}</ol><button type='button' class='next' "
        "hidden></button></nav>"
    )
    return gr.HTML(
        said(False, False, False),
        html_template=template,
        js_on_load=script("guide.js"),
        elem_id="guide",
    )


def said(analysed: bool, factored: bool, ran: bool) -> str:
    return json.dumps([analysed, factored, ran, False])


def done(session: Session, analysed: bool, factored: bool) -> str:
    return said(analysed, factored, bool(session.runs.ids()))
