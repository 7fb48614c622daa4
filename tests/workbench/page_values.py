"""What a browser would send: clicks, requests."""

from types import SimpleNamespace
from typing import Any


def click(**data: Any) -> SimpleNamespace:
    """The event of a component that reports `data`."""
    return SimpleNamespace(_data=data)


BROWSER = SimpleNamespace(session_hash="one")
