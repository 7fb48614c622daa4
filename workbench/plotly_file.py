"""Plotly's own script, compressed once: Gradio's server would compress it anew for every page."""

import asyncio
import gzip
import re
from functools import cache
from typing import Any

from .assets import PLOTLY_JS

with PLOTLY_JS.open(encoding="utf-8") as _opened:  # the first lines name the version
    VERSION = re.search(r"v(\d+\.\d+\.\d+)", _opened.read(200))[1]
NAME = f"plotly-{VERSION}.min.js"
# Before Gradio's own scripts, and no page waits for it: the figures do.
TAG = f'<script async src="./{NAME}"></script>'
FOR_EVER = b"public, max-age=31536000, immutable"  # another version has another name


class PlotlyFile:
    """ASGI middleware that answers for the path `NAME`, beside the page."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asked = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not asked or not scope["path"].endswith(f"/{NAME}"):
            return await self.app(scope, receive, send)
        headers = [(b"content-type", b"text/javascript"), (b"cache-control", FOR_EVER)]
        if takes_gzip(scope):
            body = await asyncio.to_thread(compressed)
            headers += [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
        else:
            body = PLOTLY_JS.read_bytes()
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": body})


@cache
def compressed() -> bytes:
    return gzip.compress(PLOTLY_JS.read_bytes(), 6)


def takes_gzip(scope: Any) -> bool:
    """Whether who asks takes an answer compressed by gzip."""
    names = [value for name, value in scope["headers"] if name.lower() == b"accept-encoding"]
    return any(part.split(b";")[0].strip() == b"gzip" for one in names for part in one.split(b","))
