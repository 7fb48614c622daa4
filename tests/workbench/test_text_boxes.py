"""A text box that the browser has not drawn yet sends None; the listener gets empty text."""

import asyncio

import gradio as gr

from workbench import build_app
from workbench.state.store import Store


def test_a_text_box_that_was_never_drawn_is_empty_text(tmp_path) -> None:
    app = build_app(Store(tmp_path / "runs"))
    listeners = [
        listener
        for listener in app.fns.values()
        if any(getattr(box, "elem_id", None) == "run-name" for box in listener.inputs)
    ]
    assert listeners
    for listener in listeners:
        sent = [
            None if isinstance(component, gr.Textbox) else getattr(component, "value", None)
            for component in listener.inputs
        ]
        arguments = asyncio.run(app.preprocess_data(listener, sent, None))
        for component, argument in zip(listener.inputs, arguments, strict=True):
            assert not isinstance(component, gr.Textbox) or argument == ""
