"""A page that closes the connection at the end of its stream is not gone."""

import asyncio

import pytest
from starlette.responses import StreamingResponse

from workbench.server.ended_streams import EndedStreams

CLOSE = b'data: {"msg":"close_stream"}\n\n'
SCOPE = {"type": "http", "method": "GET", "path": "/gradio_api/queue/data"}


async def runs_to_end(wrap, last, path) -> bool:
    """Whether what sends a stream goes on to its end, where the page closes the connection as it
    reads the last message, and sending it takes a while.
    """
    left_by_itself, read = False, asyncio.Event()

    async def answers():
        nonlocal left_by_itself
        yield b'data: {"msg":"process_completed"}\n\n'
        yield last
        left_by_itself = True

    async def receive():
        await read.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body") == last:
            read.set()
            await asyncio.sleep(0.05)

    await wrap(StreamingResponse(answers()))({**SCOPE, "path": path}, receive, send)
    return left_by_itself


@pytest.mark.parametrize(
    ("wrap", "last", "path", "expected"),
    [
        (EndedStreams, CLOSE, SCOPE["path"], True),
        (EndedStreams, b'data: {"msg":"heartbeat"}\n\n', SCOPE["path"], False),
        (EndedStreams, CLOSE, "/other", False),
        (lambda app: app, CLOSE, SCOPE["path"], False),  # what is mended
    ],
)
def test_a_stream_that_has_ended_is_not_broken_off(wrap, last, path, expected) -> None:
    assert asyncio.run(asyncio.wait_for(runs_to_end(wrap, last, path), 10)) is expected
