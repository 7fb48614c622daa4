"""The cache on disk: what is in it, its limit, and what goes first.

An entry is a folder (of moments, gradients, or a dequantised model) or a file (of probes, searches
or listings). The limit is $LRCORE_CACHE_LIMIT. After each write, the entries that were used the
longest time ago go until the rest fits. What a process reads is locked, and never goes.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .as_json import finite_values, json_text
from .errors import InputError, quoted
from .files import (
    ASSETS,
    OFFLOADED,
    beside,
    cache_folder,
    make_folder,
    remove_dead,
    remove_leftovers,
    write_text,
    writing,
)
from .locks import AVAILABLE, Lock, take

KINDS = {
    "moments": "statistics of activations, by calibration",
    "gradients": "statistics of gradients, by calibration",
    "spectra": "singular values of the analysis, by calibration",
    "probes": "increases in loss, for the policies that probe",
    "latency": "times of decoder layers, for budgets of latency",
    "searches": "shares of layers, for the policies that search",
    "type_searches": "shares of matrices by type, for the policy that searches them",
    "gguf": "dequantised models",
    "texts": "texts that were given in memory",
    "listings": "methods and policies, as commands list them",
    OFFLOADED: "tensors that running processes have offloaded",
}
SHIPPED = ASSETS / "evidence"  # what was measured on the demo, by folder and name as in the cache
LIMIT = "20GB"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
T = TypeVar("T")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([kmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """A folder or file of the cache. bytes: on disk; used: when, in seconds since the epoch."""

    kind: str
    path: Path
    bytes: int
    used: float


@dataclass(frozen=True)
class Removed:
    """What was deleted, and what was not because a process holds it."""

    entries: tuple[Entry, ...] = ()
    held: tuple[Entry, ...] = ()


def read_size(text: str) -> int | None:
    """Bytes from "20GB", "500 MB" or "none" (None: no limit). Raises InputError for other text."""
    if text.strip().lower() == "none":
        return None
    read = _SIZE.fullmatch(text.strip())
    if read is None:
        raise InputError(
            f"The limit of the cache reads as 20GB, 500MB or none (LRCORE_CACHE_LIMIT, or `cache "
            f"--limit`); got {quoted(text)}."
        )
    return int(float(read[1]) * UNITS[read[2].lower()])


def limit() -> int | None:
    """The most bytes that the cache may keep, $LRCORE_CACHE_LIMIT, else 20 GB; None: no limit.

    Raises InputError as `read_size` does.
    """
    return read_size(os.environ.get("LRCORE_CACHE_LIMIT") or LIMIT)


# --- what a job reads ---


def hold(folder: Path, make: bool = True) -> Lock | None:
    """Keep a folder of the cache from being evicted while the lock is referred to; it counts as
    used now. None where the system has no locks.

    make: make the folder where it is missing; otherwise None says that it is. Raises InputError
    as `limit` does, before any work, and where the cache cannot be written.
    """
    limit()
    while True:
        if make:
            _make(folder)
        lock = take(folder, shared=True, wait=True)
        if lock is None and make and not folder.is_dir():
            continue  # it was evicted between the two lines above
        _touch(folder)
        return lock


def _make(folder: Path) -> None:
    with writing(folder):
        make_folder(folder)


def read_value(file: Path) -> Any:
    """The value in a JSON file of the cache, which counts as used now, or the one that ships with
    the package; None where it is missing or damaged, so that it is made anew.
    """
    for one in (file, shipped(file)):
        with suppress(OSError, ValueError, RecursionError):
            if not one.is_file():  # also a pipe, which would be waited for
                continue
            value = finite_values(one.read_text(encoding="utf-8"))
            if one is file:
                _touch(file)
            return value
    return None


def read_as(file: Path, make: Callable[[Any], T]) -> T | None:
    """What `make` gives for the value in a JSON file, see `read_value`; None also where the value
    is of another shape than it takes.
    """
    value = read_value(file)
    if value is None:
        return None
    with suppress(TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        return make(value)
    return None


def has_value(file: Path) -> bool:
    """Whether a JSON file is in the cache, or ships with the package."""
    return file.is_file() or shipped(file).is_file()


def shipped(file: Path) -> Path:
    """Where the package has the value of a file of the cache, if it has."""
    return SHIPPED / file.parent.name / file.name


def keep_value(file: Path, value: Any) -> None:
    """Write a JSON-able value as a file of the cache, and keep to the limit."""
    write_text(file, json_text(value))
    trim()


def _touch(path: Path) -> None:
    with suppress(OSError):  # a cache that may only be read
        os.utime(path)


# --- what is in it ---


def entries() -> list[Entry]:
    """All entries, the one that was used the longest time ago first; drafts are none."""
    known = []
    for kind in KINDS:
        for path in _listed(cache_folder() / kind):
            if not path.name.startswith(".") and path.suffix != ".lock":
                with suppress(OSError):  # it has gone in the meantime
                    known.append(Entry(kind, path, _bytes(path), path.stat().st_mtime))
    return sorted(known, key=lambda entry: (entry.used, entry.path.name))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _bytes(path: Path) -> int:
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    for file in path.rglob("*") if path.is_dir() else (path,):
        with suppress(OSError):
            if file.is_file():
                yield file.stat().st_size


# --- what goes ---


def trim(most: int | None = None) -> Removed:
    """Evict the least recently used entries until the rest has at most `most` bytes.

    most: None stands for `limit()`. Nothing goes where the system has no locks, or no limit is
    set. Leftovers of killed processes go first.
    """
    most = limit() if most is None else most
    if most is None or not AVAILABLE:
        return Removed()
    clean()
    there, gone, held = entries(), [], []
    total = sum(entry.bytes for entry in there)
    for entry in there:
        if total <= most:
            break
        if _remove(entry):
            gone.append(entry)
            total -= entry.bytes
        else:
            held.append(entry)
    return Removed(tuple(gone), tuple(held))


def clear() -> Removed:
    """Delete all that no process holds."""
    clean()
    there = entries()
    gone = tuple(entry for entry in there if _remove(entry))
    return Removed(gone, tuple(entry for entry in there if entry not in gone))


def clean() -> None:
    """Delete what killed processes left in the cache."""
    for kind in KINDS:
        for folder in (cache_folder() / kind, *_listed(cache_folder() / kind)):
            remove_leftovers(folder)
    remove_dead(cache_folder() / OFFLOADED)


def _remove(entry: Entry) -> bool:
    """Delete an entry unless a process holds it; whether it is gone."""
    if entry.kind == OFFLOADED:
        return False  # `clean` has deleted those of dead processes
    lock = take(entry.path)
    if lock is None and AVAILABLE:
        return not entry.path.exists()
    aside = beside(entry.path)
    try:
        entry.path.rename(aside)  # gone at once: what is half deleted is no entry
    except OSError:
        return not entry.path.exists()
    finally:
        if lock is not None:
            lock.release()
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
    return True


def age(entry: Entry) -> str:
    """When it was last used, as date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
