"""The workbench: a page to explore, tune and run low-rank compression.

`build_app` is imported when it is first used, because the store needs no Gradio.
"""

import os
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported
# By default Gradio summarizes its last 10,000 events after each event, for a dashboard that this
# page does not have.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")

__all__ = ["build_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .app import app

    return getattr(app, name)
