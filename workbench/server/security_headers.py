"""Security headers: the browser sends no request to another host."""

from typing import Any

# Scripts and styles of the page are inline, and Gradio evaluates some, so both stay allowed.
# Pictures, fonts, frames, forms and connections of other hosts are blocked, whatever HTML a model,
# a recipe or a run name contains.
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
NO_FRAMES = "; frame-ancestors 'self'"  # a page of another site could guide clicks in a frame
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class SecurityHeaders:
    """ASGI middleware that adds `HEADERS` and the policy to every HTTP response.

    allow_frames: pages of other sites may show this page in a frame, as the hub does with a Space.
    """

    def __init__(self, app: Any, allow_frames: bool = False) -> None:
        self.app = app
        policy = POLICY if allow_frames else POLICY + NO_FRAMES
        self.headers = (*HEADERS, (b"content-security-policy", policy.encode()))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)
