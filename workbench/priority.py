"""What redraws the page comes before what computes in the background."""

import os
import threading
from contextlib import suppress

JOBS, LIVE = 5, 10  # steps of niceness: a job goes before a figure that nobody asked for


def give_way(steps: int) -> None:
    """Lower the priority of this thread, and of those that torch starts for it; on Linux, where a
    thread has a priority of its own.
    """
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), steps)
