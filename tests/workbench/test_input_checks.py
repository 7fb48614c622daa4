"""Values of fields that the browser has not updated yet."""

import gradio as gr
import pytest

from workbench.server.input_checks import check_value


def test_a_list_accepts_values_from_before_and_after_its_update() -> None:
    """The server may have filled the list before the browser shows it."""
    opened = gr.Dropdown([], label="Measured on")
    updated = gr.Dropdown(["stories"], value="stories", label="Measured on")
    state = {opened._id: updated}
    check_value(opened, None, state)
    check_value(opened, "stories", state)
    with pytest.raises(gr.Error, match="does not offer"):
        check_value(opened, "another", state)


def test_a_list_that_was_never_empty_needs_a_choice() -> None:
    with pytest.raises(gr.Error, match="takes one choice, got none"):
        check_value(gr.Dropdown(["a3"], value="a3", label="Method"), None)
