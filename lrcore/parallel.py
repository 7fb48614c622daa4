"""Several decompositions at once, each with one thread."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from .cancellation import cancellable, current_check
from .threads import fits, mkl, take_one

AT_ONCE = 2048  # rows or columns, whichever are fewer: beyond, several at once take much memory

R = TypeVar("R")


def at_once(work: Callable[[str], R], matrices: Mapping[str, Tensor]) -> dict[str, R]:
    """`work` of every name: at once, each with one thread, where all matrices [m, n] are on the CPU
    and min(m, n) <= AT_ONCE; else one after the other.

    matrices: what is decomposed under each name, or as large; the one of most numbers begins. What
    `work` raises is raised here, and no other begins; what is cancelled stops.
    """
    count = min(torch.get_num_threads(), len(matrices))
    fit = count > 1 and all(fits(matrix, AT_ONCE) for matrix in matrices.values())
    if not fit or mkl() is None:
        return {name: work(name) for name in matrices}
    check, grad = current_check(), torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    raised: list[BaseException] = []

    def alone(name: str) -> R:
        if raised:  # whoever waits for the results may be late to hear of it
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
        jobs = {name: pool.submit(alone, name) for name in largest_first}
        try:
            return {name: jobs[name].result() for name in matrices}
        finally:
            for job in jobs.values():
                job.cancel()
