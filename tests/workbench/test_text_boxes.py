"""Boxes that nobody has typed into."""

import gradio as gr

from workbench import build_app
from workbench.store import Store


def test_a_box_that_was_never_drawn_is_empty_text(tmp_path):
    app = build_app(Store(tmp_path / "runs"))
    boxes = [one for one in app.blocks.values() if isinstance(one, gr.Textbox)]
    typed = {one.elem_id: one.preprocess(None) for one in boxes}
    own = {name for name in typed if not str(name).startswith("field-")}  # a recipe may hold None
    assert "run-name" in own
    assert {name for name in own if typed[name] != ""} == set()
