"""How many threads a decomposition on the CPU takes.

LAPACK's threads wait for each other thousands of times in a small decomposition. That gains little
on cores that do nothing else, and where another process has one of them, as in a container, it
takes several times as long as with one thread (`scripts/benchmarks.py threads`).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SMALL = 768  # rows or columns, whichever are fewer, up to which one thread is at least as good


@contextmanager
def threads_for(matrix: Tensor) -> Iterator[None]:
    """Inside, decompositions by this thread use one thread of MKL where `matrix` [..., m, n] is on
    the CPU and min(m, n) <= SMALL. No effect on other threads, nor where torch has no MKL.
    """
    library = mkl() if fits(matrix, SMALL) else None
    if library is None:
        yield
        return
    before = library.MKL_Set_Num_Threads_Local(1)
    try:
        yield
    finally:
        library.MKL_Set_Num_Threads_Local(before)


def fits(matrix: Tensor, size: int) -> bool:
    """Whether a matrix [..., m, n] is on the CPU, and min(m, n) <= size."""
    return min(matrix.shape[-2:]) <= size and matrix.device.type == "cpu"


def take_one() -> None:
    """Let this thread compute without others, from here on."""
    torch.get_num_threads()  # torch gives a new thread its number, once
    library = mkl()
    if library is not None:
        library.omp_set_num_threads(1)
        library.MKL_Set_Num_Threads_Local(1)


@cache
def mkl() -> ctypes.CDLL | None:
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
