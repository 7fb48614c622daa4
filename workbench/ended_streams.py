"""A stream of answers that has ended is not taken for a page that is gone."""

import asyncio
from typing import Any

STREAM = "/queue/data"
LAST = b'"close_stream"'  # the message after which Gradio's server leaves a stream


class EndedStreams:
    """ASGI middleware for the end of a stream of answers.

    Gradio's server ends the stream of a page once it has sent the last answer, and the page closes
    the connection. Where the server reads that before it has left the stream, as a busy one does,
    it takes the page for gone and forgets what was asked meanwhile: a click without an answer.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(STREAM):
            await self.app(scope, receive, send)
            return
        ended = False

        async def noted(message: Any) -> None:
            nonlocal ended
            ended = ended or LAST in message.get("body", b"")
            await send(message)

        async def connected() -> Any:
            message = await receive()
            if ended and message["type"] == "http.disconnect":
                await asyncio.Event().wait()  # until the server has left the stream
            return message

        await self.app(scope, connected, noted)
