"""Values that a browser would send: clicks and requests."""

from types import SimpleNamespace
from typing import Any

import gradio as gr


def click(**data: Any) -> gr.EventData:
    """Return the event of a component with this data."""
    return gr.EventData(None, data)


BROWSER = SimpleNamespace(session_hash="one")
