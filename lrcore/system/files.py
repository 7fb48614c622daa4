"""Atomic writes of files and folders, the cache folder, and temporary folders per process.

A file or folder is written under a temporary name in the same folder (a draft), synced to the disk
and then renamed. Readers find it complete or not at all, even after a power failure. The process
that writes a draft holds a lock on it; a draft without a lock is a leftover and is deleted. If the
disk is full, the draft is deleted and the previous file stays.
"""

import atexit
import ctypes
import errno
import glob
import hashlib
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from .as_json import json_text
from .errors import InputError, ResourceError
from .locks import AVAILABLE, Lock, try_lock
from .memory import megabytes
from .path_access import expanded
from .resource_errors import FULL, why_not_written

_PACKAGE = Path(__file__).resolve().parents[1]
# An installed package contains the assets (see setup.py); in a clone they are next to it.
ASSETS = _PACKAGE / "assets"
if not ASSETS.is_dir():
    ASSETS = _PACKAGE.parent / "assets"
MARK = "lrcore.json"  # marks a folder as a checkpoint of this project
OFFLOADED = "offloaded"  # cache folder of the tensors that running processes have offloaded
DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
TRIES = 5  # attempts to make a draft, which another process can delete before it is locked
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # errors of a file system without fsync


def cache_folder() -> Path:
    """Return the cache folder: $LRCORE_CACHE, else the platform's, such as ~/.cache/lrcore.

    If that is not writable, the folder is a temporary one of this user. Raises InputError for a
    path that is not UTF-8.
    """
    variables = (os.environ.get("HOME"), os.environ.get("XDG_CACHE_HOME"))
    folder = Path(os.environ.get("LRCORE_CACHE") or _default_cache(variables))
    check_utf8(folder)
    return folder


@cache
def _default_cache(variables: tuple[str | None, ...]) -> Path:
    """Return the folder without $LRCORE_CACHE; print a note once if it is a temporary one.

    variables: values of HOME and XDG_CACHE_HOME. The path depends on them, so they are arguments:
    `functools.cache` computes the path again if they change.
    """
    # imported here, as it takes a tenth of the import time of `lrcore --help`
    from platformdirs import user_cache_path

    default = user_cache_path("lrcore", appauthor=False)
    nearest = next(folder for folder in (default, *default.parents) if folder.exists())
    if default.is_absolute() and os.access(nearest, os.W_OK):
        return default
    user = os.getuid() if hasattr(os, "getuid") else 0
    temporary = Path(tempfile.gettempdir()) / f"lrcore-{user}"
    temporary.mkdir(mode=0o700, exist_ok=True)
    if temporary.stat().st_uid != user:  # made by another user
        temporary = Path(tempfile.mkdtemp(prefix="lrcore-"))
    print(
        f"note: '{default}' is not writable; the cache is '{temporary}'. Set LRCORE_CACHE to "
        "another folder.",
        file=sys.stderr,
    )
    return temporary


def cache_key(*parts: Any) -> str:
    """Return the name of a cache entry: 24 hexadecimal digits of the sha256 of `parts` as JSON.

    parts: JSON-able; the order of the items of a mapping does not matter.
    """
    return hashlib.sha256(json_text(parts, sort_keys=True).encode()).hexdigest()[:24]


# --- atomic writes ---


def check_utf8(path: Path) -> None:
    """Raise InputError for a path that is not UTF-8: libraries for weights and tokenizers could not
    read the file again.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        shown = ascii(str(path.absolute()))
        raise InputError(
            f"The path {shown} is not UTF-8, which libraries require. Choose another folder or "
            "name."
        ) from error


def check_file(path: Path) -> None:
    """Raise InputError if no file can be written at a path: it names a folder or a device, or a
    file is above it. Called before a long computation.
    """
    check_utf8(path)
    _check_replaceable(path)
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"'{path}' is below the file '{above}'. Choose another folder.")


def _check_replaceable(path: Path) -> None:
    """Raise InputError if the path is a folder, a device, a pipe or a socket.

    A rename would replace a device without an error if the user is root, even /dev/null.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device, a pipe or a socket"
        raise InputError(f"'{path}' is {kind}. Give the name of a file to write.")


@contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """Yield a temporary file, renamed to `path` at the end of the block, deleted after an error.

    Each draft has a unique name, so several threads and processes can write the same file; the last
    to finish wins. The contents are synced to the disk before the file is renamed. Raises
    ResourceError for a full disk, and InputError if `path` is not a file.
    """
    path = expanded(path)
    _check_replaceable(path)
    with _draft(path, folder=False) as draft:
        yield draft
        to_disk(draft)
        draft.replace(path)


@contextmanager
def folder_draft_of(folder: Path, keep: str = "") -> Iterator[Path]:
    """Yield an empty temporary folder, renamed to `folder` at the end of the block.

    The contents are synced to the disk before the folder is renamed. An existing folder is
    replaced, unless it has a file named `keep`: another process has then written the same folder
    first, and the draft is discarded. Raises ResourceError for a full disk.
    """
    with _draft(folder, folder=True) as draft:
        yield draft
        for inside in (*draft.rglob("*"), draft):
            if not inside.is_symlink():
                to_disk(inside)
        if not (keep and (folder / keep).is_file()):
            exchange(draft, folder)


@contextmanager
def _draft(path: Path, folder: bool) -> Iterator[Path]:
    """Yield an empty draft of `path`, which the block renames; delete it after the block."""
    with writing(path):
        make_folder(path.parent)
        remove_leftovers(path.parent, path.name)
        draft, lock = _make_draft(path, folder)
        try:
            with writing(draft):
                yield draft
                to_disk(path.parent)
        finally:
            if folder:
                shutil.rmtree(draft, ignore_errors=True)
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            _release(lock)


@contextmanager
def writing(path: Path, needed: int = 0) -> Iterator[None]:
    """Raise ResourceError in place of the block's errors about a full or read-only disk.

    path: file, folder or draft that the block writes. The message counts its current size as free
    space, as an incomplete file is deleted. needed: bytes, for the message; 0 if unknown.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = why_not_written(error)
        if not reason or not _concerns(error, path):
            raise
        raise ResourceError(_not_writable(path, reason, needed)) from error


def raise_unless_room(folder: Path, need: int, subject: str, remedy: str) -> None:
    """Raise ResourceError if fewer than `need` bytes are free on the disk of a folder.

    subject: subject of the message, in the plural. remedy: last sentence of the message.
    """
    free = shutil.disk_usage(folder).free
    if need > free:
        raise ResourceError(
            f"{subject} take {megabytes(need)} of disk; {megabytes(free)} are free in '{folder}'. "
            f"{remedy}"
        )


def _concerns(error: Exception, path: Path) -> bool:
    """Return whether an error is about writing `path` or a folder above it, not about a file
    elsewhere that the block reads.
    """
    name = getattr(error, "filename", None)
    if not name:
        return True
    failed, parent = Path(os.fsdecode(name)).absolute(), _final_name(path).parent.absolute()
    return failed.is_relative_to(parent) or parent.is_relative_to(failed)


def _final_name(path: Path) -> Path:
    """Return the path that a draft, or the draft around a file, is renamed to; any other path is
    returned unchanged.
    """
    for inside in (path, *path.parents):
        if DRAFT.fullmatch(inside.name):
            return inside.with_name(inside.name[1:-13])  # without "." and ".01234567.tmp"
    return path


def _not_writable(path: Path, reason: str, needed: int) -> str:
    """Return a message with the reason, the free bytes and a remedy."""
    final = _final_name(path)
    in_cache = path.absolute().is_relative_to(cache_folder().absolute())
    if reason in FULL.values():
        nearest = next(folder for folder in (final.parent, *final.parents) if folder.is_dir())
        with suppress(OSError):
            files = (path, *path.rglob("*")) if path.is_dir() else (path,)
            written = sum(file.stat().st_size for file in files if file.is_file())
            free = megabytes(written + shutil.disk_usage(nearest).free)
            more = f"{megabytes(needed)} are needed, " if needed else ""
            reason = f"{reason} ({more}{free} are free in '{nearest}')"
        remedy = "Make room there, or choose another folder; the previous contents are unchanged."
        if in_cache:
            remedy = "Empty it with `lrcore cache --clear`, or set LRCORE_CACHE to another folder."
    else:
        remedy = "Choose a writable folder; the previous contents are unchanged."
        if in_cache:
            remedy = "Set LRCORE_CACHE to a writable folder."
    subject = f"The cache '{cache_folder()}'" if in_cache else f"'{final}'"
    return f"{subject} cannot be written: {reason}. {remedy}"


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def exchange(draft: Path, folder: Path) -> None:
    """Replace `folder` by the folder `draft`; the previous folder is deleted last.

    A folder of that name exists at every moment if the system can exchange two names atomically.
    Raises OSError if the rename fails; the previous folder is then restored.
    """
    if not folder.exists():
        draft.rename(folder)
    elif _swap(draft, folder):
        shutil.rmtree(draft, ignore_errors=True)
    else:
        # another process would delete an unlocked folder with the name of a draft
        previous = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
        folder.rename(previous)
        try:
            draft.rename(folder)
        except OSError:
            previous.rename(folder)
            raise
        shutil.rmtree(previous, ignore_errors=True)


def _swap(first: Path, second: Path) -> bool:
    """Exchange two names atomically (renameat2 of Linux); return False if that is not possible."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    at_cwd, exchange_names = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(at_cwd, names[0], at_cwd, names[1], exchange_names) == 0)


def temporary_sibling(path: Path) -> Path:
    """Return a unique hidden name in the same folder, and so on the same file system."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _make_draft(path: Path, folder: bool) -> tuple[Path, Lock | None]:
    """Make an empty draft of `path` and lock it; the lock is None on systems without locks.

    Another process that deletes leftovers can be faster than the lock; then another name is tried.
    """
    for _ in range(TRIES):
        draft = temporary_sibling(path)
        draft.mkdir() if folder else draft.touch(exist_ok=False)
        lock = try_lock(draft)
        if lock is not None or not AVAILABLE:
            return draft, lock
        with suppress(OSError):
            draft.rmdir() if folder else draft.unlink()
    draft.mkdir() if folder else draft.touch()  # the file system has no locks
    return draft, None


def _release(lock: Lock | None) -> None:
    if lock is not None:
        lock.release()


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Delete drafts of killed processes in a folder; name: only the drafts of this file."""
    pattern = name if name == "*" else glob.escape(name)
    for draft in folder.glob(f".{pattern}.*.tmp"):
        if DRAFT.fullmatch(draft.name):
            remove_unlocked(draft)


def remove_unlocked(path: Path) -> bool:
    """Delete a file or folder unless a process has locked it; return whether it was deleted."""
    lock = try_lock(path)
    if lock is None:
        return False
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # the folder is read-only
            path.unlink(missing_ok=True)
    lock.release()
    return not path.exists()


# --- synchronization with the disk ---


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and sync their names to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on the disk.

    Raises OSError if the disk fails.
    """
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(descriptor)


# --- temporary folders of processes ---


@cache
def process_folder(parent: Path) -> Path:
    """Make a folder in `parent` that is deleted when this process ends; delete the folders of dead
    processes.

    The process locks a file next to its folder, so a folder without a locked file is a leftover.
    Raises OSError if the folder cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_dead(parent)
    folder, lock = _make_locked_folder(parent)

    def clean_up() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)
        _release(lock)

    atexit.register(clean_up)
    return folder


def is_process_running(folder: Path) -> bool:
    """Return whether the process with this `process_folder` runs; False without locks."""
    file = folder.with_suffix(".lock")
    if not AVAILABLE or not file.exists():
        return False
    lock = try_lock(file)
    if lock is not None:
        lock.release()
    return lock is None and file.exists()


def remove_dead(parent: Path) -> None:
    """Delete the process folders in `parent` whose process has ended."""
    for file in parent.glob("*.lock"):
        lock = try_lock(file)
        if lock is not None:
            shutil.rmtree(file.with_suffix(""), ignore_errors=True)
            file.unlink(missing_ok=True)
            lock.release()


def _make_locked_folder(parent: Path) -> tuple[Path, Lock | None]:
    """Make a folder, and before it a locked file next to it.

    Another process can delete the file before it is locked; then another name is tried.
    """
    for _ in range(TRIES):
        folder = parent / uuid.uuid4().hex
        file = folder.with_suffix(".lock")
        file.touch(exist_ok=False)
        lock = try_lock(file)
        if lock is not None or not AVAILABLE:
            break
        file.unlink(missing_ok=True)
    folder.mkdir()
    return folder, lock
