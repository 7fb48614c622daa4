"""Parts of the page that are built when they are first needed.

The description of a new page does not have them, so the page opens faster.
"""

from collections.abc import Callable
from typing import Any

import gradio as gr

from .events import PRESSED, QUIET

# The listeners of such a part are made for each page. Gradio keeps a queue for each listener for
# ever, unless the listener names one.
_QUEUE: dict[str, Any] = {"concurrency_id": "parts built on demand", "concurrency_limit": 4}
ON_DEMAND, PRESSED_ON_DEMAND = QUIET | _QUEUE, PRESSED | _QUEUE
# For work of seconds: the outputs show Gradio's progress sign, and one such event runs at a time.
WITH_PROGRESS: dict[str, Any] = {
    "api_visibility": "private",
    "concurrency_id": "work of parts built on demand",
    "concurrency_limit": 1,
}


def on_demand(event: Any, build: Callable[[], None]) -> None:
    """Place a part that `build` makes at the event, which comes once: see `components.sight`.

    `build` places components and attaches their listeners, each with a `concurrency_id`.
    """
    gr.render(triggers=[event], show_progress="hidden", **_QUEUE)(build)
