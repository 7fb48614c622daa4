"""Scripts that come before Gradio's own: Gradio has no place for one. The page, which holds the
whole of its layout, is compressed on the way.
"""

import gzip
from functools import lru_cache
from typing import Any

from .assets import script
from .plotly_file import TAG, takes_gzip

HEAD = b"<head>"
OWN = script("address.js", "loading-clock.js", "plot-pdf.js")
FIRST = f"{HEAD.decode()}<script>{OWN}</script>{TAG}".encode()


class FirstScript:
    """ASGI middleware that puts the scripts of `OWN`, which all plots share or which Gradio's own
    must not precede, and Plotly first into the head of every HTML page, and compresses the page for
    a browser that takes that.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        head: Any = None  # of a page whose body has not come yet
        body = b""

        async def send_page(message: Any) -> None:
            nonlocal head, body
            if message["type"] == "http.response.start" and is_html(message):
                head = message
            elif head is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                start, head = head, None
                others = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
                page = body.replace(HEAD, FIRST, 1)
                if takes_gzip(scope):
                    page = packed(page)
                    others += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
                length = (b"content-length", str(len(page)).encode())
                await send(start | {"headers": [*others, length]})
                await send(message | {"body": page})

        await self.app(scope, receive, send_page if scope["type"] == "http" else send)


@lru_cache(2)
def packed(page: bytes) -> bytes:
    """Compressed once: Gradio's page is the same for everybody until the server ends."""
    return gzip.compress(page, 5)


def is_html(start: Any) -> bool:
    """Whether a response that starts so is a page, not compressed yet."""
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    kind = headers.get(b"content-type", b"")
    return kind.startswith(b"text/html") and b"content-encoding" not in headers
