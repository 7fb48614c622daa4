"""Values that a browser sends for fields before it shows the server's update of the fields."""

import gradio as gr
import pytest

from workbench.server.input_checks import check_value


def test_a_list_that_is_empty_in_the_browser_yet_is_no_mistake() -> None:
    """The server has filled it and chosen from it meanwhile."""
    opened = gr.Dropdown([], label="Measured on")
    updated = gr.Dropdown(["stories"], value="stories", label="Measured on")
    state = {opened._id: updated}
    check_value(opened, None, state)
    check_value(opened, "stories", state)
    with pytest.raises(gr.Error, match="does not offer"):
        check_value(opened, "another", state)


def test_a_list_that_was_never_empty_is_sent_with_a_choice() -> None:
    with pytest.raises(gr.Error, match="takes one choice, got none"):
        check_value(gr.Dropdown(["a3"], value="a3", label="Method"), None)
