"""Numbers of threads of matrix decompositions on the CPU.

The threads of LAPACK synchronize thousands of times in a small decomposition. This gains little on
idle cores, and takes several times as long as a single thread if another process uses one of the
cores, as in a container (`python -m benchmarks threads`).
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

from .cancellation import cancellable, current_check

SMALL = 768  # min(m, n) up to which a single thread is at least as fast
AT_ONCE = 2048  # min(m, n) up to which several decompositions run at once; limits the memory

R = TypeVar("R")


@contextmanager
def threads_for(matrix: Tensor) -> Iterator[None]:
    """Use a single thread of MKL for decompositions of this thread, if the matrix is small.

    matrix: [..., m, n], on the CPU, with min(m, n) <= SMALL; no effect otherwise, without MKL, and
    on other threads.
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


def at_once(work: Callable[[str], R], matrices: Mapping[str, Tensor]) -> dict[str, R]:
    """Return `work` of every name, computed in parallel with a single thread each.

    matrices: the matrix [m, n] that is decomposed per name, or a matrix of its size. The names are
    computed one after another unless all matrices are on the CPU with min(m, n) <= AT_ONCE. The
    first exception is raised here, and no further name is started.
    """
    count = min(torch.get_num_threads(), len(matrices))
    is_parallel = count > 1 and all(fits(matrix, AT_ONCE) for matrix in matrices.values())
    if not is_parallel or mkl() is None:
        return {name: work(name) for name in matrices}
    check, grad = current_check(), torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    raised: list[BaseException] = []

    def run(name: str) -> R:
        if raised:  # the thread that collects the results can be late
            raise raised[0]
        with (
            cancellable(check) if check is not None else nullcontext(),
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
        ):
            try:
                return work(name)
            except BaseException as error:
                raised.append(error)
                raise

    largest_first = sorted(matrices, key=lambda name: -matrices[name].numel())
    with ThreadPoolExecutor(count, initializer=take_one) as pool:
        jobs = {name: pool.submit(run, name) for name in largest_first}
        try:
            return {name: jobs[name].result() for name in matrices}
        finally:
            for job in jobs.values():
                job.cancel()


def fits(matrix: Tensor, size: int) -> bool:
    """Return whether a matrix [..., m, n] is on the CPU and min(m, n) <= size."""
    return min(matrix.shape[-2:]) <= size and matrix.device.type == "cpu"


def take_one() -> None:
    """Let the calling thread compute with a single thread from now on."""
    torch.get_num_threads()  # torch initializes the number of a new thread once
    library = mkl()
    if library is not None:
        library.omp_set_num_threads(1)
        library.MKL_Set_Num_Threads_Local(1)


@cache
def mkl() -> ctypes.CDLL | None:
    """Return torch's library if it can set the number of threads per thread: with MKL, on Linux.

    `torch.set_num_threads` is not used: threads that start in the meantime keep the number.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        _ = library.MKL_Set_Num_Threads_Local, library.omp_set_num_threads
        return library
    return None
