"""Memory and thread priorities of the server process.

glibc gives each allocating thread an arena, up to eight per core. A thread cannot use the free
memory of other arenas, so the dozens of threads of a page would hold much unused memory.
The functions for arenas and free memory have an effect only on Linux with glibc.
"""

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

M_ARENA_MAX = -8  # as in malloc.h
ARENAS = 2  # the interpreter lock lets few threads allocate at a time
JOB_NICENESS, LIVE_NICENESS = 5, 10  # jobs run before live figures


def limit_arenas() -> None:
    """Let the threads that start from now on allocate from `ARENAS` arenas."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


@contextmanager
def released_memory() -> Iterator[None]:
    """Return free memory to the system after a large task, such as a job."""
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def permanent_objects() -> Iterator[None]:
    """Exclude all objects that exist at the end of the block from garbage collection.

    All threads wait for a collection, and it would take 0.25 s for the imported modules and 0.5 s
    for 10,000 runs.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def lower_priority(niceness: int) -> None:
    """Lower the priority of this thread and of the threads that torch starts for it.

    A lower priority, as of a page started with `nice`, is kept. This has an effect only on Linux,
    where threads have priorities.
    """
    with suppress(AttributeError, OSError):
        thread = threading.get_native_id()
        lowest = max(niceness, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, lowest)
