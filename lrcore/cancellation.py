"""Work can be stopped within a layer, and where no network runs: while a model is loaded, a matrix
factorised or a checkpoint written.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

Check = Callable[[], None]


class _Looks:
    """Calls `check` until it raises: what then unwinds is to restore what it changed.

    ended: nothing is asked any more.
    """

    def __init__(self, check: Check) -> None:
        self.check, self.ended = check, False

    def __call__(self) -> None:
        if not self.ended:
            self.ended = True
            self.check()
            self.ended = False


class _Checking(TorchFunctionMode):
    """Looks before the functions of torch that its thread calls, but for those that only set
    something: leaving `torch.no_grad()` is one, and is to be done whatever happens.
    """

    def __init__(self, look: _Looks) -> None:
        super().__init__()
        self.look = look

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not _sets(getattr(func, "__name__", "")):
            self.look()
        return func(*args, **(kwargs or {}))


@cache
def _sets(name: str) -> bool:
    """Whether a function of this name sets something: of torch (`set_default_dtype`), of a tensor
    (`requires_grad_`, `copy_`), or an attribute or entry of one.
    """
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith(("set_", "_set_", "__set"))


class _Running(threading.local):
    """The innermost mode of each thread."""

    mode: _Checking | None = None


_running = _Running()


def current_check() -> Check | None:
    """What `cancellable` calls in this thread; None outside of it."""
    return None if _running.mode is None else _running.mode.look.check


@contextmanager
def cancellable(check: Check) -> Iterator[None]:
    """Inside, this thread calls `check` before functions of torch and every module of a network,
    and in a backward pass after that of every module; it may raise `Cancelled`, and is not called
    after that.

    `progress` comes after a layer, which over all windows, or in one factorisation, may take many
    seconds. It costs 1 to 2 microseconds a function. A single function, such as one decomposition,
    cannot be stopped.
    """
    thread, look = threading.get_ident(), _Looks(check)

    def before(_: object, given: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            look()
            _look_backwards(given, look)

    outer, mode = _running.mode, _Checking(look)
    handle = register_module_forward_pre_hook(before)  # where `unchecked` left only this
    try:
        with mode:
            _running.mode = mode
            yield
    finally:
        _running.mode = outer
        handle.remove()
        look.ended = True  # a graph that was built here may be run backwards later


def _look_backwards(given: tuple[Any, ...], look: _Looks) -> None:
    """Look as soon as the gradients of what a module is given are known: a backward pass is one
    function of torch, and may take seconds.
    """
    if not torch.is_grad_enabled():
        return
    for one in given:
        if isinstance(one, Tensor) and one.requires_grad and not one.is_leaf:
            one.register_hook(lambda _: look())


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
