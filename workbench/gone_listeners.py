"""A press on what is being drawn anew is answered with a sentence."""

import json
from typing import Any

SENTENCE = "What was pressed is being drawn anew for another choice. Try again in a moment."
BODY = json.dumps({"detail": SENTENCE}, allow_nan=False).encode()
ASKED = ("/queue/join", "/run/predict")  # through Gradio's queue, or past it
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


class GoneListeners:
    """ASGI middleware for what a page asks of a listener that the server has no longer.

    Where `gr.render` draws boxes anew, the server forgets the listeners of the old ones while the
    page still shows them. Gradio's server fails at what is asked of these, and its page takes that
    for a lost connection: it loads itself anew, and everything that was chosen in it is gone.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except KeyError as error:
            index = error.args[0] if error.args else None
            asked = scope["type"] == "http" and scope["path"].endswith(ASKED)
            if not asked or not isinstance(index, int):
                raise
            await send({"type": "http.response.start", "status": 400, "headers": HEADERS})
            await send({"type": "http.response.body", "body": BODY})
