"""The Blocks of the page give what Gradio's own give, and do less for it."""

import asyncio
from copy import deepcopy

import anyio.to_thread
import gradio as gr
import pandas as pd
import pytest
from gradio.blocks import BlocksConfig
from gradio.state_holder import SessionState

from workbench import build_app
from workbench.components import Number
from workbench.quick_blocks import Blocks
from workbench.store import Store

GIVEN = ["<b>a</b>", [1, {"b": None}], True, "text", 3.0, "two"]
ANSWERS = {
    "values": ["<i>x</i>", 0.3, "two", "kept", pd.DataFrame({"a": [1]}), True],
    "nothing": [None, 0.1, None, None, None, None],
    "all stay": [gr.skip()] * 6,
    "some stay": ["<i>x</i>", gr.skip(), gr.skip(), gr.skip(), gr.skip(), False],
    "updates": [
        gr.update(visible=False),
        gr.update(value=0.25, maximum=0.5),
        gr.update(choices=["three"], value="three"),
        gr.update(value="of the state"),
        gr.update(interactive=True),
        gr.skip(),
    ],
    "one for all": gr.skip(),
}


def small(kind):
    """A page of components of many kinds, and its one event."""
    with kind(analytics_enabled=False) as demo:
        inputs = [gr.HTML(), gr.JSON(), gr.Checkbox(), gr.Textbox(), Number(), gr.Radio(["two"])]
        outputs = [
            gr.HTML(),
            gr.Slider(0, 1, precision=1),
            gr.Dropdown(["one", "two"]),
            gr.State("first"),
            gr.Dataframe(),
            gr.Checkbox(),
        ]
        gr.Button().click(lambda *values: values, inputs, outputs)
    return demo


def event_of(demo):
    return next(iter(demo.fns.values()))


def page_of(demo, state):
    """What the page remembers: values and settings of its components, without their numbers."""
    rows = [{**row, "id": 0, "key": 0, "component_class_id": 0} for row in state.components]
    return rows, [*state.state_data.values()]


def answered(kind, predictions):
    demo = small(kind)
    state = SessionState(demo)
    sent = asyncio.run(demo.postprocess_data(event_of(demo), deepcopy(predictions), state))
    return seen(sent), page_of(demo, state)


def seen(sent):
    """Without the empty entry that Gradio adds for HTML, which its page does not read."""
    return [
        {k: v for k, v in one.items() if k != "props"} if isinstance(one, dict) else one
        for one in sent
    ]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_is_sent_what_gradio_sends(name):
    assert answered(Blocks, ANSWERS[name]) == answered(gr.Blocks, ANSWERS[name])


def test_one_output_is_sent_as_gradio_sends_it():
    def sent(kind, answer):
        with kind(analytics_enabled=False) as demo:
            gr.Button().click(lambda: answer, None, gr.HTML())
        return seen(asyncio.run(demo.postprocess_data(event_of(demo), deepcopy(answer), None)))

    for answer in ("<b>a</b>", None, gr.skip(), gr.update(value="b"), gr.HTML(visible=False)):
        assert sent(Blocks, answer) == sent(gr.Blocks, answer)


def test_a_listener_is_given_what_gradio_gives():
    def given(kind):
        demo = small(kind)
        state = SessionState(demo)
        read = asyncio.run(demo.preprocess_data(event_of(demo), [*GIVEN], state))
        return read, page_of(demo, state)

    assert given(Blocks) == given(gr.Blocks)
    for wrong in (["<b>a</b>"], [*GIVEN[:5], "no choice"]):
        for kind in (Blocks, gr.Blocks):
            demo = small(kind)
            with pytest.raises((gr.Error, ValueError)) as error:
                asyncio.run(demo.preprocess_data(event_of(demo), wrong, None))
            sentence = "A field was given what it cannot hold (" in str(error.value)
            assert sentence == (kind is Blocks)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return build_app(Store(tmp_path_factory.mktemp("runs")))


def test_a_page_that_opens_is_told_what_gradio_tells(page):
    state = SessionState(page)
    assert len(state.config_values) > 300
    for key, told in state.config_values.items():
        assert told == BlocksConfig.config_for_block(key, [], page.blocks[key])


def test_pages_share_no_values(page):
    one, other = SessionState(page), SessionState(page)
    html = next(key for key, block in page.blocks.items() if isinstance(block, gr.HTML))
    one._update_value_in_config(html, "of one page")
    assert one.config_values[html]["props"]["value"] == "of one page"
    assert other.config_values[html]["props"].get("value") != "of one page"
    assert SessionState(page).config_values[html]["props"].get("value") != "of one page"
    one[html] = gr.HTML("another", render=False)
    assert one[html] is not other[html]


def test_what_stays_and_what_is_plain_costs_no_component_and_no_thread(monkeypatch):
    demo, made, hops = small(Blocks), [], []
    built, run_sync = gr.HTML.__init__, anyio.to_thread.run_sync

    def init(self, *given, **settings):
        made.append(self)
        built(self, *given, **settings)

    async def hop(*given, **settings):
        hops.append(given)
        return await run_sync(*given, **settings)

    monkeypatch.setattr(gr.HTML, "__init__", init)
    monkeypatch.setattr(anyio.to_thread, "run_sync", hop)
    answer = ["<i>x</i>", *[gr.skip()] * 5]
    asyncio.run(demo.postprocess_data(event_of(demo), answer, None))
    plain = small(Blocks)
    event_of(plain).inputs = event_of(plain).inputs[:3]
    asyncio.run(plain.preprocess_data(event_of(plain), GIVEN[:3], None))
    assert hops == []
    assert len(made) == 2  # of the second page, not by the event
