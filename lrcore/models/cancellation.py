"""Work that runs a network can be stopped within a layer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def cancellable(check: Callable[[], None]) -> Iterator[None]:
    """Inside, every module of a network that this thread runs calls `check` first, which may raise
    `Cancelled`: one layer over all windows may take many seconds, and `progress` comes after it.
    """
    thread = threading.get_ident()

    def before(*_: object) -> None:
        if threading.get_ident() == thread:
            check()

    handle = register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()
