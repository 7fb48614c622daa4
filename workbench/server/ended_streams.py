"""Workarounds for streams of answers whose page closes the connection."""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException

STREAM = "/queue/data"
LAST_MESSAGE = b'"close_stream"'


class EndedStreams:
    """ASGI middleware that hides the disconnect after the last message of an answer stream, and the
    error of a stream whose page is closed.

    Gradio ends the stream of a page after the last answer, and the page closes the connection. If a
    busy server reads the disconnect before it has left the stream, it takes the page for closed and
    drops the events that arrived meanwhile: a click without an answer.

    If a page with two streams closes, the first one drops its events, and Gradio ends the other
    with an HTTPException after the answer began. Nobody reads this answer.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(STREAM):
            await self.app(scope, receive, send)
            return
        has_ended = False

        async def watch(message: Any) -> None:
            nonlocal has_ended
            has_ended = has_ended or LAST_MESSAGE in message.get("body", b"")
            await send(message)

        async def receive_until_ended() -> Any:
            message = await receive()
            if has_ended and message["type"] == "http.disconnect":
                await asyncio.Event().wait()  # until Gradio leaves the stream
            return message

        try:
            await self.app(scope, receive_until_ended, watch)
        except RuntimeError as error:
            if not isinstance(error.__cause__, HTTPException):
                raise
