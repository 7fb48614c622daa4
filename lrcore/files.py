"""Atomic writes of files and folders, the cache folder, and temporary folders per process.

A file or folder is written under another name in the same place (a draft), brought to the disk,
then renamed: whoever reads it, even after the power failed, finds it whole or not at all. The
process that writes a draft holds a lock on it; one without a lock is a leftover, and goes. Where
there is no room, the draft goes, and what was there stays.
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
from .errors import InputError, Shortage
from .locks import AVAILABLE, Lock, take
from .memory import megabytes
from .places import expanded
from .shortage import FULL, why_not_written

_PACKAGE = Path(__file__).resolve().parent
# Inside the package where it is installed (see setup.py), beside it in a clone.
ASSETS = _PACKAGE / "assets"
if not ASSETS.is_dir():
    ASSETS = _PACKAGE.parent / "assets"
MARK = "lrcore.json"  # marks a folder as a checkpoint of this project
OFFLOADED = "offloaded"  # folder in the cache for tensors that a running process has offloaded
DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
TRIES = 5  # names for a draft, where somebody who cleans up is faster than its lock
NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # a file system that knows no fsync of this


def cache_folder() -> Path:
    """Folder of cached calibrations and offloaded tensors: $LRCORE_CACHE, else ~/.cache/lrcore; and
    where that cannot be written, a folder of this user among the temporary files. Raises InputError
    where the name is no text.
    """
    folder = Path(os.environ.get("LRCORE_CACHE") or _usual_cache(os.environ.get("HOME")))
    check_text(folder)
    return folder


@cache
def _usual_cache(home: str | None) -> Path:
    """The folder without $LRCORE_CACHE; says once where it is not at home. home: tells when to look
    anew.
    """
    usual = Path(os.path.expanduser("~")) / ".cache" / "lrcore"
    nearest = next(folder for folder in (usual, *usual.parents) if folder.exists())
    if usual.is_absolute() and os.access(nearest, os.W_OK):
        return usual
    user = os.getuid() if hasattr(os, "getuid") else 0
    spare = Path(tempfile.gettempdir()) / f"lrcore-{user}"
    spare.mkdir(mode=0o700, exist_ok=True)
    if spare.stat().st_uid != user:  # somebody else made it
        spare = Path(tempfile.mkdtemp(prefix="lrcore-"))
    print(
        f"note: '{usual}' cannot be written; the cache is '{spare}'. LRCORE_CACHE names another.",
        file=sys.stderr,
    )
    return spare


def cache_key(*parts: Any) -> str:
    """Name of a cache entry: 24 hexadecimal digits of the sha256 of the JSON of all `parts`.

    parts: JSON-able; the order of a mapping's items does not count.
    """
    return hashlib.sha256(json_text(parts, sort_keys=True).encode()).hexdigest()[:24]


# --- whole or not at all ---


def check_text(path: Path) -> None:
    """Raise InputError where the whole path is no UTF-8 text: what is written there could not be
    read again, as the libraries for weights and tokenizers take no such names.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        shown = ascii(str(path.absolute()))
        raise InputError(
            f"The path {shown} is no UTF-8 text, which libraries need. Choose another folder or "
            "name."
        ) from error


def check_file(path: Path) -> None:
    """Raise InputError where no file can be written, as something else has its name or a file is in
    the place of a folder above it: worth asking before a long computation.
    """
    check_text(path)
    _check_replaceable(path)
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"'{path}' is below the file '{above}'. Choose another folder.")


def _check_replaceable(path: Path) -> None:
    """Raise InputError for what is no file: root could replace /dev/null for all programs."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device, a pipe or a socket"
        raise InputError(f"'{path}' is {kind}. Give the name of a file to write.")


@contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """A temporary file to write, renamed to `path` at the end of the block, deleted after an error.

    Each draft has a unique name, so threads and processes may write one file at the same time: the
    last to finish wins. The file is on the disk before its name is. Raises Shortage where it cannot
    be written, and InputError for the name of what is no file.
    """
    path = expanded(path)
    _check_replaceable(path)
    with _draft(path, folder=False) as draft:
        yield draft
        to_disk(draft)
        draft.replace(path)


@contextmanager
def folder_draft_of(folder: Path, keep: str = "") -> Iterator[Path]:
    """The same for a folder, empty at first; all in it is on the disk before its name is.

    An earlier folder makes way for it, except for one that has a file named `keep`. Raises Shortage
    where it cannot be written.
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
    """An empty draft of `path`, which the block brings to its name; what is left of it goes."""
    with writing(path):
        make_folder(path.parent)
        remove_leftovers(path.parent, path.name)
        draft, lock = _claim(path, folder)
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
    """Inside, `path` is written. Raises Shortage, with what was needed and free, in the place of
    what a disk that is full, or closed to writing, leads to.

    path: the file, folder or draft; what of it is there counts as free. needed: bytes, 0 for not
    known.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = why_not_written(error)
        if not reason or not _concerns(error, path):
            raise
        raise Shortage(_no_room(path, reason, needed)) from error


def raise_unless_room(folder: Path, need: int, what: str, remedy: str) -> None:
    """Raise Shortage where so many bytes are more than are free on the disk of a folder that is
    there, before the first of them is written. what: takes them. remedy: a sentence.
    """
    free = shutil.disk_usage(folder).free
    if need > free:
        raise Shortage(
            f"{what} take {megabytes(need)} of disk; {megabytes(free)} are free in '{folder}'. "
            f"{remedy}"
        )


def _concerns(error: Exception, path: Path) -> bool:
    """Whether a failure is one of writing `path`, or of making a folder above it, not of reading
    something elsewhere.
    """
    named = getattr(error, "filename", None)
    if not named:
        return True
    failed, parent = (one.absolute() for one in (Path(os.fsdecode(named)), _whole(path).parent))
    return failed.is_relative_to(parent) or parent.is_relative_to(failed)


def _whole(path: Path) -> Path:
    """What a draft, or a file in one, is a draft of; another path is its own."""
    for inside in (path, *path.parents):
        if DRAFT.fullmatch(inside.name):
            return inside.with_name(inside.name[1:-13])  # without ".", and ".01234567.tmp"
    return path


def _no_room(path: Path, reason: str, needed: int) -> str:
    """What could not be written, why, how much is free there, and what to do; where writing is not
    allowed, room would not help.
    """
    whole = _whole(path)
    in_cache = path.absolute().is_relative_to(cache_folder().absolute())
    if reason in FULL.values():
        nearest = next(folder for folder in (whole.parent, *whole.parents) if folder.is_dir())
        with suppress(OSError):
            there = (path, *path.rglob("*")) if path.is_dir() else (path,)
            taken = sum(file.stat().st_size for file in there if file.is_file())
            free = megabytes(taken + shutil.disk_usage(nearest).free)
            more = f"{megabytes(needed)} are needed, " if needed else ""
            reason = f"{reason} ({more}{free} are free in '{nearest}')"
        advice = "Make room there, or choose another folder; what was there before is unchanged."
        if in_cache:
            advice = "Empty it with `lrcore cache --clear`, or set LRCORE_CACHE to another folder."
    else:
        advice = "Choose a folder that may be written; what was there before is unchanged."
        if in_cache:
            advice = "Set LRCORE_CACHE to a folder that may be written."
    what = f"The cache '{cache_folder()}'" if in_cache else f"'{whole}'"
    return f"{what} cannot be written: {reason}. {advice}"


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def exchange(draft: Path, folder: Path) -> None:
    """Replace `folder` by the folder `draft`; the old one is deleted last.

    Where the system exchanges two names at once, there is a folder at every moment. Raises OSError
    where the rename fails; the old folder is then back in its place.
    """
    if not folder.exists():
        draft.rename(folder)
    elif _swap(draft, folder):
        shutil.rmtree(draft, ignore_errors=True)
    else:
        old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")  # no draft: it counts
        folder.rename(old)
        try:
            draft.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names at once (renameat2 of Linux); False where that cannot be done."""
    try:
        call = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, both = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(call(here, os.fsencode(one), here, os.fsencode(other), both) == 0)


def beside(path: Path) -> Path:
    """A unique hidden name in the same folder, thus on the same file system for a rename."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _claim(path: Path, folder: bool) -> tuple[Path, Lock | None]:
    """An empty draft of `path` with its lock, None where the system has none.

    Somebody who looks for leftovers may be faster than the lock: then another name is tried.
    """
    for _ in range(TRIES):
        draft = beside(path)
        draft.mkdir() if folder else draft.touch(exist_ok=False)
        lock = take(draft)
        if lock is not None or not AVAILABLE:
            return draft, lock
        with suppress(OSError):
            draft.rmdir() if folder else draft.unlink()
    draft.mkdir() if folder else draft.touch()  # a file system without locks
    return draft, None


def _release(lock: Lock | None) -> None:
    if lock is not None:
        lock.release()


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Delete the drafts in a folder that killed processes left; name: those of one file alone."""
    pattern = name if name == "*" else glob.escape(name)
    for left in folder.glob(f".{pattern}.*.tmp"):
        if DRAFT.fullmatch(left.name):
            remove_unlocked(left)


def remove_unlocked(path: Path) -> bool:
    """Delete a file or folder unless somebody holds a lock on it; whether it was deleted."""
    lock = take(path)
    if lock is None:
        return False
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # a folder that may only be read
            path.unlink(missing_ok=True)
    lock.release()
    return not path.exists()


# --- what has reached the disk ---


def make_folder(folder: Path) -> None:
    """Make a folder with those above it; their names are on the disk on return."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        to_disk(made.parent)


def to_disk(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, have reached the disk.

    Raises OSError where they cannot.
    """
    if os.name == "nt" and path.is_dir():
        return
    opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(opened)


# --- folders of a process ---


@cache
def folder_of_this_process(parent: Path) -> Path:
    """A new folder in `parent`, deleted when this process ends; leftovers of dead processes go now.

    A process holds a lock on the file beside its folder, so a folder without a locked file is a
    leftover. Raises OSError where it cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_dead(parent)
    own, lock = _own_folder(parent)

    def clean_up() -> None:
        shutil.rmtree(own, ignore_errors=True)
        own.with_suffix(".lock").unlink(missing_ok=True)
        _release(lock)

    atexit.register(clean_up)
    return own


def process_runs(folder: Path) -> bool:
    """Whether the process still runs that has this folder from `folder_of_this_process`; False on
    a system without locks.
    """
    file = folder.with_suffix(".lock")
    if not AVAILABLE or not file.exists():
        return False
    lock = take(file)
    if lock is not None:
        lock.release()
    return lock is None and file.exists()


def remove_dead(parent: Path) -> None:
    """Delete the folders in `parent` whose process has ended."""
    for file in parent.glob("*.lock"):
        lock = take(file)
        if lock is not None:
            shutil.rmtree(file.with_suffix(""), ignore_errors=True)
            file.unlink(missing_ok=True)
            lock.release()


def _own_folder(parent: Path) -> tuple[Path, Lock | None]:
    """A new folder, and the lock on the file beside it, which is there first.

    Before the file is locked, another process may take it for a leftover: then another is made.
    """
    for _ in range(TRIES):
        own = parent / uuid.uuid4().hex
        file = own.with_suffix(".lock")
        file.touch(exist_ok=False)
        lock = take(file)
        if lock is not None or not AVAILABLE:
            break
        file.unlink(missing_ok=True)
    own.mkdir()
    return own, lock
