"""Workaround for answers that Gradio loses when a browser closes an ended stream."""

import asyncio
from typing import Any

STREAM = "/queue/data"
LAST_MESSAGE = b'"close_stream"'


class EndedStreams:
    """ASGI middleware that hides the disconnect after the last message of an answer stream.

    Gradio ends the stream of a page after the last answer, and the page closes the connection. If a
    busy server reads the disconnect before it has left the stream, it takes the page for closed and
    drops the events that arrived meanwhile: a click without an answer.
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

        await self.app(scope, receive_until_ended, watch)
