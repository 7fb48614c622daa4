"""What a page asks of a listener that is gone does not look like a lost connection to it."""

import asyncio
import json

import gradio as gr
import httpx
import pytest
from gradio.routes import App

from workbench.app import launch_settings
from workbench.gate import Names
from workbench.gone_listeners import SENTENCE, GoneListeners


def asked(*middleware, where: str = "queue/join") -> httpx.Response:
    """The answer to a page that asks for the listener 99 of an application without any."""
    with gr.Blocks(analytics_enabled=False) as demo:
        gr.Markdown("nothing")
    app = App.create_app(demo, app_kwargs={"middleware": list(middleware)})

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://page"
        ) as client:
            question = {"fn_index": 99, "data": [], "session_hash": "one"}
            return await client.post(f"/gradio_api/{where}", json=question)

    return asyncio.run(ask())


@pytest.mark.parametrize("where", ["queue/join", "run/predict"])
def test_it_is_answered_with_a_sentence(where):
    served = launch_settings(Names())["app_kwargs"]["middleware"]
    answer = asked(*(one for one in served if one.cls is GoneListeners), where=where)
    assert (answer.status_code, answer.json()) == (400, {"detail": SENTENCE})


def test_gradio_alone_fails_at_it():
    """Once it does not, the middleware can go."""
    answer = asked()
    assert answer.status_code == 500
    with pytest.raises(json.JSONDecodeError):
        answer.json()


def test_another_failure_stays_one():
    async def app(scope, receive, send):
        raise KeyError("a name")

    with pytest.raises(KeyError):
        asyncio.run(GoneListeners(app)({"type": "http", "path": "/queue/join"}, None, None))
