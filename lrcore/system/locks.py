"""Locks of files and folders, which the system releases when a process ends or is killed.

A draft without a lock is a leftover of a killed process. Locked paths are in use.
"""

import os
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no locks, so no leftovers are recognized
    fcntl = None  # type: ignore[assignment]  # the module can be missing

AVAILABLE = fcntl is not None


class Lock:
    """A lock that lasts until `release`, the last reference to it, or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._release = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Release the lock; further calls have no effect."""
        self._release()


def try_lock(path: Path, shared: bool = False, wait: bool = False) -> Lock | None:
    """Lock a file or folder; return None if it is missing or a conflicting lock exists.

    shared: any number of shared locks can coexist, but no exclusive lock with them. wait: wait for
    conflicting locks.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        # The path can be deleted or replaced between open and flock.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return Lock(descriptor)
    except OSError:
        pass
    os.close(descriptor)
    return None
