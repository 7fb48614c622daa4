"""Memory that was freed and that glibc keeps: given back to the system, on Linux.

Every thread that allocates gets a heap of its own, up to eight for each core, and what is free in
one is of no use to another. A page has dozens of threads, each of which computes now and then.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress

M_ARENA_MAX = -8  # as malloc.h names it
HEAPS = 2  # the interpreter's lock lets few threads allocate at a time


def share() -> None:
    """Let the threads that start from here on allocate from HEAPS heaps; no effect on other C
    libraries.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)


@contextmanager
def given_back() -> Iterator[None]:
    """After what takes much, such as a job or an answer, give the free pages of all heaps to the
    system; no effect on other C libraries.
    """
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
