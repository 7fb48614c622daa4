"""Messages for errors of the system: a full disk or memory, and files that cannot be opened."""

import errno
import os
import re

from .errors import InputError, ResourceError, quoted
from .memory import free_memory, megabytes

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EFBIG: "the file is too large for the disk",
}
# Errors of a path that cannot be written, or not by this user.
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
# Errors of opening a path that is not a file, or without permission.
NO_FILE = (*CLOSED, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EIO)
# Messages of SQLite and of libraries in other languages, which have no error number.
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
    r"|failed to map segment from shared object|can't start new thread",  # imports and threads
    re.IGNORECASE,
)
_REQUEST = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def resource_error(error: BaseException) -> InputError | None:
    """Return the sentence for an exception caused by missing disk space or memory.

    A `ResourceError` is returned as it is. Return a plain `InputError` for a file that cannot be
    opened, a file name that is too long, and a working folder that no longer exists; None for any
    other exception.
    """
    if isinstance(error, InputError):
        return error if isinstance(error, ResourceError) else None
    if _lacks_memory(error):
        return ResourceError(_memory_sentence(error))
    number, name = _error_number(error), getattr(error, "filename", None)
    if number == errno.ENAMETOOLONG and name:
        last = quoted(os.path.basename(os.fsdecode(name)))
        return InputError(f"{last} is too long for the name of a file or folder. Check it.")
    if isinstance(error, OSError) and number in NO_FILE and name:
        reason = os.strerror(number)
        path = quoted(os.fsdecode(name))
        return InputError(f"{path} cannot be opened: {reason}. Check the path.")
    if number == errno.ENOENT and not name and not _has_working_folder():
        return InputError("The working folder no longer exists. Change to another folder.")
    if number not in FULL:
        return None
    subject = f"'{name}'" if name else "A file"
    return ResourceError(f"{subject} cannot be written: {FULL[number]}. Make room and try again.")


def _has_working_folder() -> bool:
    """Return whether the working folder exists."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def raise_shortage(error: BaseException) -> None:
    """Raise the error that `resource_error` returns for an exception, if any."""
    converted = resource_error(error)
    if converted is not None:
        raise converted from error


# --- disk ---


def why_not_written(error: BaseException) -> str:
    """Return the reason of a failed write in a few words; "" for other errors."""
    number = _error_number(error)
    if number in FULL:
        return FULL[number]
    return os.strerror(number) if number in (*CLOSED, errno.ENOENT) else ""


def _error_number(error: BaseException) -> int | None:
    """Return the errno of an error, stored or implied by the message; None if unknown."""
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
    figures = []
    if request:
        figures.append(
            f"{megabytes(float(request[1]) * _UNITS[request[2].lower()])} were requested"
        )
    if free is not None and "CUDA" not in str(error):
        figures.append(f"{megabytes(free)} are free")
    numbers = f" ({', '.join(figures)})" if figures else ""
    return (
        f"Not enough memory{numbers}. Use fewer or shorter windows, a smaller dtype, or offload "
        "the model."
    )
