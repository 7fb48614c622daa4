"""Locks of files and folders, which the system releases however a process ends.

A draft without a lock is thus a leftover of a killed process, and what is locked is in use.
"""

import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and so nothing is taken for a leftover
    fcntl = None  # type: ignore[assignment]  # a module that may be absent

AVAILABLE = fcntl is not None


class Lock:
    """Held until it is released, or until the last reference to it or the process is gone."""

    def __init__(self, opened: int) -> None:
        self._release = weakref.finalize(self, os.close, opened)

    def release(self) -> None:
        """Give it back; once more does nothing."""
        self._release()


def take(path: Path, shared: bool = False, wait: bool = False) -> Lock | None:
    """Lock a file or folder; None where it is gone, or somebody holds a lock against this one.

    shared: any number may hold it at once, but nobody alone. wait: until the others release it.
    """
    if fcntl is None:
        return None
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(opened, kind if wait else kind | fcntl.LOCK_NB)
        # Between opening and locking, the path may have been deleted, or given to another file.
        if os.path.samestat(os.fstat(opened), os.stat(path)):
            return Lock(opened)
    except OSError:
        pass
    os.close(opened)
    return None
