"""Text boxes that the browser has not drawn, which send None."""

import asyncio

import gradio as gr

from workbench import build_app
from workbench.state.store import Store


def test_the_value_of_an_undrawn_text_box_is_an_empty_string(tmp_path) -> None:
    app = build_app(Store(tmp_path / "runs"))
    listeners = [
        listener
        for listener in app.fns.values()
        if any(getattr(box, "elem_id", None) == "prompt" for box in listener.inputs)
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
