"""Work can be stopped within a layer, and where no network runs: while a model is loaded, a matrix
factorised or a checkpoint written.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

Check = Callable[[], None]


class _Checking(TorchFunctionMode):
    """Calls `check` before every function of torch that its thread calls."""

    def __init__(self, check: Check) -> None:
        super().__init__()
        self.check = check

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.check()
        return func(*args, **(kwargs or {}))


class _Running(threading.local):
    """The innermost mode of each thread."""

    mode: _Checking | None = None


_running = _Running()


def current_check() -> Check | None:
    """What `cancellable` calls in this thread; None outside of it."""
    return None if _running.mode is None else _running.mode.check


@contextmanager
def cancellable(check: Check) -> Iterator[None]:
    """Inside, this thread calls `check` before every function of torch and every module of a
    network; it may raise `Cancelled`.

    `progress` comes after a layer, which over all windows, or in one factorisation, may take many
    seconds. It costs 1 to 2 microseconds a function. A single function, such as one decomposition,
    cannot be stopped.
    """
    thread = threading.get_ident()

    def before(*_: object) -> None:
        if threading.get_ident() == thread:
            check()

    outer, mode = _running.mode, _Checking(check)
    handle = register_module_forward_pre_hook(before)  # where `unchecked` left only this
    try:
        with mode:
            _running.mode = mode
            yield
    finally:
        _running.mode = outer
        handle.remove()


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, functions of torch cost what they do outside of `cancellable`: for what is timed.

    A network still stops before its next module.
    """
    mode = _running.mode
    if mode is None:
        yield
        return
    _running.mode = None
    mode.__exit__(None, None, None)
    try:
        yield
    finally:
        mode.__enter__()
        _running.mode = mode
