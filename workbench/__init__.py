"""The workbench: a store and the page on it. It imports only the public API of lrcore.

`build_app` and `LAUNCH` come from `workbench.app` once they are needed: the store knows no Gradio.
"""

import os
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

__all__ = ["LAUNCH", "build_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import app

    return getattr(app, name)
