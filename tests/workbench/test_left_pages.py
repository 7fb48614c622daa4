"""What the server keeps of pages ends some time after they were left, and has a bound."""

from datetime import datetime, timedelta

import gradio as gr
from gradio.state_holder import StateHolder

from workbench import left_pages
from workbench.app import launch_settings
from workbench.gate import Names


def pages(*names):
    with gr.Blocks(analytics_enabled=False) as demo:
        gr.State(1)
    holder = StateHolder()
    holder.set_blocks(demo)
    for name in names:
        assert holder[name] is holder[name]
    return holder


def test_a_page_that_was_left_is_forgotten_and_one_that_is_there_is_not():
    holder = pages("left", "there", "came back")
    holder["left"].is_closed = holder["came back"].is_closed = True
    now = datetime.now()
    left_pages.drop(holder, now)
    assert len(holder.session_data) == 3
    holder.time_last_used["came back"] = now + timedelta(minutes=1)
    left_pages.drop(holder, now + left_pages.LEFT)
    assert {*holder.session_data} == {*holder.time_last_used} == {"there", "came back"}
    left_pages.drop(holder, now + left_pages.LEFT + timedelta(minutes=2))
    assert {*holder.session_data} == {"there"}


def test_the_number_of_pages_has_a_bound():
    assert launch_settings(Names())["state_session_capacity"] == left_pages.MOST
