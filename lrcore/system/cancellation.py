"""Cancellation between functions of torch: within a layer, and while a model is loaded, a matrix
is factorized or a checkpoint is written.
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


class _CheckOnce:
    """Calls `check` until it raises. Afterwards cleanup code runs without checks.

    ended: the check is no longer called.
    """

    def __init__(self, check: Check) -> None:
        self.check, self.ended = check, False

    def __call__(self) -> None:
        if not self.ended:
            self.ended = True
            self.check()
            self.ended = False


class _Checking(TorchFunctionMode):
    """Checks before the functions of torch in a thread, except functions that set a
    state: the exit of `torch.no_grad()` must not be interrupted.
    """

    def __init__(self, check: _CheckOnce) -> None:
        super().__init__()
        self.check = check

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not _sets_state(getattr(func, "__name__", "")):
            self.check()
        return func(*args, **(kwargs or {}))


@cache
def _sets_state(name: str) -> bool:
    """Return whether a function sets a state of torch (`set_default_dtype`) or of a tensor
    (`requires_grad_`, `copy_`, an attribute or an entry), by name.
    """
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith(("set_", "_set_", "__set"))


class _Running(threading.local):
    """The innermost mode of each thread."""

    mode: _Checking | None = None


_running = _Running()


def current_check() -> Check | None:
    """Return the check of `cancellable` in this thread, or None."""
    return None if _running.mode is None else _running.mode.check.check


@contextmanager
def cancellable(check: Check) -> Iterator[None]:
    """Call `check` in this thread before functions of torch and modules, and in backward passes.

    `check` may raise `Cancelled`; it is not called afterwards. Use it in addition to `progress`,
    which is called once per layer, and so once in many seconds. It costs 1 to 2 microseconds per
    function. A single function, such as a decomposition, cannot be interrupted.
    """
    thread, check_once = threading.get_ident(), _CheckOnce(check)

    def before(_: object, inputs: tuple[Any, ...]) -> None:
        if threading.get_ident() == thread:
            check_once()
            _check_in_backward(inputs, check_once)

    outer, mode = _running.mode, _Checking(check_once)
    handle = register_module_forward_pre_hook(before)  # works also in `unchecked`
    try:
        with mode:
            _running.mode = mode
            yield
    finally:
        _running.mode = outer
        handle.remove()
        check_once.ended = True  # a graph of this block can run backward later


def _check_in_backward(inputs: tuple[Any, ...], check: _CheckOnce) -> None:
    """Check when the gradients of a module's inputs are computed: a backward pass is a single
    function of torch and can take seconds.
    """
    if not torch.is_grad_enabled():
        return
    for tensor in inputs:
        if isinstance(tensor, Tensor) and tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(lambda _: check())


@contextmanager
def unchecked() -> Iterator[None]:
    """Skip the checks before functions of torch in this block, for measurements of time.

    The checks before modules stay.
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
