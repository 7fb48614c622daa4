"""A cookie that identifies a browser across reloads and tabs, for its status bar and its turns in
the job queue.

It protects nothing: all browsers of a page see all jobs and runs.
"""

import secrets
from typing import Any

from starlette.requests import HTTPConnection

from ..widgets.events import BROWSER_COOKIE

ATTRIBUTES = "Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax"


class BrowserCookie:
    """ASGI middleware that sets the cookie when a browser without one opens the page."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_cookie(message: Any) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{BROWSER_COOKIE}={secrets.token_urlsafe(16)}; {ATTRIBUTES}"
                headers = [*message.get("headers", ()), (b"set-cookie", cookie.encode())]
                message["headers"] = headers
            await send(message)

        is_opening = scope["type"] == "http" and scope["path"] == "/"
        is_new = is_opening and BROWSER_COOKIE not in HTTPConnection(scope).cookies
        await self.app(scope, receive, send_with_cookie if is_new else send)
