"""What the server tells a browser that shows the page: to ask no other host for anything."""

from typing import Any

# The page's own scripts and styles are inline and Gradio evaluates a few, so those stay allowed;
# pictures, fonts, frames, forms and connections of another host are not, whatever text a model, a
# recipe or a run name holds.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "media-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    )
)
ALONE = "; frame-ancestors 'self'"  # in no frame of another site, which could guide a click
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class SecurityHeaders:
    """ASGI middleware that adds `HEADERS` and the policy to every HTTP response. framed: whether
    pages of other sites may show this one in a frame, as the hub does with a Space.
    """

    def __init__(self, app: Any, framed: bool = False) -> None:
        self.app = app
        policy = POLICY if framed else POLICY + ALONE
        self.headers = (*HEADERS, (b"content-security-policy", policy.encode()))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)
