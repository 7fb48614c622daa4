"""How many threads a decomposition on the CPU takes, and several decompositions at once.

LAPACK's threads wait for each other thousands of times in a small decomposition. That gains little
on cores that do nothing else, and where another process has one of them, as in a container, it
takes several times as long as with one thread (`scripts/benchmarks.py threads`).
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from .models.cancellation import cancellable, current_check

SMALL = 768  # rows or columns, whichever are fewer, up to which one thread is at least as good
AT_ONCE = 2048  # the same, up to which several decompositions at once take little memory

R = TypeVar("R")


@contextmanager
def threads_for(matrix: Tensor) -> Iterator[None]:
    """Inside, decompositions by this thread use one thread of MKL where `matrix` [..., m, n] is on
    the CPU and min(m, n) <= SMALL. No effect on other threads, nor where torch has no MKL.
    """
    library = _library() if _fits(matrix, SMALL) else None
    if library is None:
        yield
        return
    before = library.MKL_Set_Num_Threads_Local(1)
    try:
        yield
    finally:
        library.MKL_Set_Num_Threads_Local(before)


def each(work: Callable[[str], R], matrices: Mapping[str, Tensor]) -> dict[str, R]:
    """`work` of every name: at once, each with one thread, where all matrices [m, n] are on the CPU
    and min(m, n) <= AT_ONCE; else one after the other.

    matrices: what is decomposed under each name, or as large. What `work` raises is raised here;
    what is cancelled stops.
    """
    count = min(torch.get_num_threads(), len(matrices))
    at_once = count > 1 and all(_fits(matrix, AT_ONCE) for matrix in matrices.values())
    if not at_once or _library() is None:
        return {name: work(name) for name in matrices}
    check, grad = current_check(), torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()

    def alone(name: str) -> R:
        with (
            cancellable(check) if check is not None else nullcontext(),
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
        ):
            return work(name)

    largest_first = sorted(matrices, key=lambda name: -matrices[name].numel())
    with ThreadPoolExecutor(count, initializer=_take_one) as pool:
        jobs = {name: pool.submit(alone, name) for name in largest_first}
        try:
            return {name: jobs[name].result() for name in matrices}
        finally:
            for job in jobs.values():
                job.cancel()


def _fits(matrix: Tensor, size: int) -> bool:
    return min(matrix.shape[-2:]) <= size and matrix.device.type == "cpu"


def _take_one() -> None:
    """Let this thread compute without others."""
    torch.get_num_threads()  # torch gives a new thread its number, once
    library = _library()
    if library is not None:
        library.omp_set_num_threads(1)
        library.MKL_Set_Num_Threads_Local(1)


@cache
def _library() -> ctypes.CDLL | None:
    """torch's own, where its numbers of threads can be set for one thread alone: with MKL, on
    Linux.

    Not `torch.set_num_threads`: its number is also that of threads which compute for the first time
    in the meantime, and they keep it.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        _ = library.MKL_Set_Num_Threads_Local, library.omp_set_num_threads
        return library
    return None
