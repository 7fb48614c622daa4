"""The workbench: a store and the page on it. It imports only the public API of lrcore.

`build_app` and `LAUNCH` come from `workbench.app` once they are needed: the store knows no Gradio.
"""

import os
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported
# By default Gradio summarises its last 10,000 events after each event, for a page that is not
# served: a server that has run for a while would spend more on that than on drawing.
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")

__all__ = ["LAUNCH", "build_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import app

    return getattr(app, name)
