"""Streams of events whose page closes the connection after the last message."""

import asyncio

import pytest
from starlette.responses import StreamingResponse

from workbench.server.ended_streams import EndedStreams

CLOSE = b'data: {"msg":"close_stream"}\n\n'
SCOPE = {"type": "http", "method": "GET", "path": "/gradio_api/queue/data"}


async def runs_to_end(wrap, last, path) -> bool:
    """Return whether a stream is sent to its end if the page closes the connection as soon as it
    reads the last message.
    """
    is_complete, read = False, asyncio.Event()

    async def answers():
        nonlocal is_complete
        yield b'data: {"msg":"process_completed"}\n\n'
        yield last
        is_complete = True

    async def receive():
        await read.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body") == last:
            read.set()
            await asyncio.sleep(0.05)

    await wrap(StreamingResponse(answers()))({**SCOPE, "path": path}, receive, send)
    return is_complete


@pytest.mark.parametrize(
    ("wrap", "last", "path", "expected"),
    [
        (EndedStreams, CLOSE, SCOPE["path"], True),
        (EndedStreams, b'data: {"msg":"heartbeat"}\n\n', SCOPE["path"], False),
        (EndedStreams, CLOSE, "/other", False),
        (lambda app: app, CLOSE, SCOPE["path"], False),  # without the wrapper
    ],
)
def test_an_ended_stream_is_not_canceled(wrap, last, path, expected) -> None:
    assert asyncio.run(asyncio.wait_for(runs_to_end(wrap, last, path), 10)) is expected
