"""What the system refuses, as one sentence: disk and memory that do not suffice, and files that
cannot be opened.
"""

import errno
import os
import re

from .errors import InputError, Shortage, quoted
from .memory import free_memory, megabytes

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "the disk takes no file so large",
}
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
# What opening a name leads to that is no file, or none that may be opened.
NO_FILE = (*CLOSED, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EIO)
# What libraries that are not written in Python, and SQLite, say without a number.
SIGNS = {
    "No space left on device": errno.ENOSPC,
    "database or disk is full": errno.ENOSPC,
    "disk I/O error": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "File too large": errno.EFBIG,
    "Read-only file system": errno.EROFS,
    "readonly database": errno.EROFS,
    "unable to open database file": errno.EACCES,
}
NO_MEMORY = re.compile(
    r"(can't|cannot) allocate memory|not enough memory|out of memory|bad_alloc"
    r"|failed to map segment from shared object|can't start new thread",  # importing, and threads
    re.IGNORECASE,
)
_REQUEST = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def shortage(error: BaseException) -> InputError | None:
    """The sentence for an exception that says that disk or memory do not suffice; or (no
    `Shortage`) that a file cannot be opened, its name is longer than those of files may be, or the
    present folder is gone. None for another. A Shortage is its own.
    """
    if isinstance(error, InputError):
        return error if isinstance(error, Shortage) else None
    if _lacks_memory(error):
        return Shortage(_memory_sentence(error))
    number, named = _number(error), getattr(error, "filename", None)
    if number == errno.ENAMETOOLONG and named:
        name = quoted(os.path.basename(os.fsdecode(named)))
        return InputError(f"{name} is too long for the name of a file or folder. Check it.")
    if isinstance(error, OSError) and number in NO_FILE and named:
        why = os.strerror(number)
        return InputError(f"{quoted(os.fsdecode(named))} cannot be opened: {why}. Check the path.")
    if number == errno.ENOENT and not named and not _is_somewhere():
        return InputError("The folder that this was started in is gone. Change to another one.")
    if number not in FULL:
        return None
    what = f"'{named}'" if named else "Something"
    return Shortage(f"{what} cannot be written: {FULL[number]}. Make room there, and try again.")


def _is_somewhere() -> bool:
    """Whether the present folder is still there."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def raise_shortage(error: BaseException) -> None:
    """Raise Shortage where an exception says that disk or memory do not suffice."""
    short = shortage(error)
    if short is not None:
        raise short from error


# --- disk ---


def why_not_written(error: BaseException) -> str:
    """Why something could not be written, in a few words; "" where that is not what happened."""
    number = _number(error)
    if number in FULL:
        return FULL[number]
    return os.strerror(number) if number in (*CLOSED, errno.ENOENT) else ""


def _number(error: BaseException) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    message = str(error)
    if isinstance(error, OSError) and re.fullmatch(r"\d+ requested and \d+ written", message):
        return errno.ENOSPC  # numpy
    return next((number for sign, number in SIGNS.items() if sign in message), None)


# --- memory ---


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return bool(NO_MEMORY.search(str(error)))


def _memory_sentence(error: BaseException) -> str:
    request, free = _REQUEST.search(str(error)), free_memory()
    known = []
    if request:
        known.append(f"{megabytes(float(request[1]) * _UNITS[request[2].lower()])} were asked for")
    if free is not None and "CUDA" not in str(error):
        known.append(f"{megabytes(free)} are free")
    numbers = f" ({', '.join(known)})" if known else ""
    return (
        f"The memory does not suffice{numbers}. Use fewer or shorter windows (samples, seq_len), a "
        "smaller dtype, or offload the model."
    )
