"""Cache on disk: entries, size limit and eviction.

An entry is a folder (of moments, gradients, or a dequantized model) or a file (of probes, searches,
texts, tokens, listings or states). The limit is $LRCORE_CACHE_LIMIT. After each write, the least
recently used entries are deleted until the cache fits. Entries that a process reads are locked and
stay.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .as_json import finite_values, json_text
from .errors import InputError, quoted
from .files import (
    ASSETS,
    OFFLOADED,
    cache_folder,
    make_folder,
    remove_dead,
    remove_leftovers,
    temporary_sibling,
    write_text,
    writing,
)
from .locks import AVAILABLE, Lock, try_lock

KINDS = {
    "moments": "statistics of activations, by calibration",
    "gradients": "statistics of gradients, by calibration",
    "spectra": "singular values of the analysis, by calibration",
    "probes": "increases in loss, for policies with probes",
    "latency": "times of decoder layers, for latency budgets",
    "searches": "shares of layers, or losses of tried plans, for policies with a search",
    "type_searches": "shares of matrices by type, for policy bolaco",
    "gguf": "dequantized models",
    "adapters": "models with merged adapters",
    "distillations": "states of interrupted distillations",
    "texts": "texts from memory",
    "tokens": "token ids of long texts",
    "listings": "lists of methods and policies",
    OFFLOADED: "tensors of running processes",
}
SHIPPED = ASSETS / "evidence"  # measurements of the demo models, in the layout of the cache
LIMIT = "20GB"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
T = TypeVar("T")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([kmgt]?)b?", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """A folder or file of the cache. used: time of the last use, seconds since the epoch."""

    kind: str
    path: Path
    bytes: int
    used: float


@dataclass(frozen=True)
class Removed:
    """Deleted entries. held: entries that were not deleted because a process has locked them."""

    entries: tuple[Entry, ...] = ()
    held: tuple[Entry, ...] = ()


def read_size(text: str) -> int | None:
    """Return the bytes of "20GB" or "500 MB", None for "none". Raises InputError for other text."""
    if text.strip().lower() == "none":
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{quoted(text)} is not a valid limit of the cache (LRCORE_CACHE_LIMIT, or `cache "
            "--limit`). Enter a size such as 20GB or 500MB, or none."
        )
    return int(float(match[1]) * UNITS[match[2].lower()])


def limit() -> int | None:
    """Return the limit in bytes: $LRCORE_CACHE_LIMIT, by default 20 GB; None for no limit.

    Raises InputError like `read_size`.
    """
    return read_size(os.environ.get("LRCORE_CACHE_LIMIT") or LIMIT)


# --- reading and writing ---


def hold(folder: Path, make: bool = True) -> Lock | None:
    """Lock a folder of the cache against eviction, and mark it as used.

    The lock lasts as long as a reference to it. It is None on systems without locks. make: make a
    missing folder; otherwise the lock of a missing folder is None. Raises InputError like `limit`,
    and ResourceError if the cache is not writable.
    """
    limit()
    while True:
        if make:
            _make(folder)
        lock = try_lock(folder, shared=True, wait=True)
        if lock is None and make and not folder.is_dir():
            continue  # another process evicted the folder after `_make`
        mark_used(folder)
        return lock


def _make(folder: Path) -> None:
    with writing(folder):
        make_folder(folder)


def read_value(file: Path) -> Any:
    """Return the value of a JSON file of the cache, and mark the file as used.

    If the cache has no readable file, the package's copy is read (see `shipped`). Returns None if
    neither can be read.
    """
    for path in (file, shipped(file)):
        with suppress(OSError, ValueError, RecursionError):
            if not path.is_file():  # missing, or a pipe, which would block
                continue
            value = finite_values(path.read_text(encoding="utf-8"))
            if path is file:
                mark_used(file)
            return value
    return None


def read_as(file: Path, make: Callable[[Any], T]) -> T | None:
    """Return the value of a JSON file of the cache, converted by `make`.

    Returns None if `read_value` returns None or `make` cannot convert the value.
    """
    value = read_value(file)
    if value is None:
        return None
    with suppress(TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        return make(value)
    return None


def has_value(file: Path) -> bool:
    """Return whether a JSON file is in the cache or in the package."""
    return file.is_file() or shipped(file).is_file()


def shipped(file: Path) -> Path:
    """Return the path in the package that corresponds to a file of the cache."""
    return SHIPPED / file.parent.name / file.name


def keep_value(file: Path, value: Any) -> None:
    """Write a JSON-able value to a file of the cache, then evict entries beyond the limit."""
    write_text(file, json_text(value))
    trim()


def mark_used(path: Path) -> None:
    """Set the time of the last use of an entry to the present."""
    with suppress(OSError):  # the cache is read-only
        os.utime(path)


def text_name(data: Any) -> Any:
    """Return the name of a text: a file of the cache for texts in memory, other values unchanged.

    data: a name; a list or tuple of strings, or of rows with fields; a `datasets.Dataset`. The file
    is a .jsonl file named by a hash of the documents. Raises ResourceError if the cache is not
    writable.
    """
    rows = data
    if _is_dataset(data):  # with a format, the rows can be tables; a column has no format
        rows = list(data.with_format(None) if hasattr(data, "with_format") else data)
    if not isinstance(rows, list | tuple) or not rows:
        return data
    if not all(isinstance(row, str | Mapping) for row in rows):
        return data
    lines = [json_text({"text": row} if isinstance(row, str) else dict(row)) for row in rows]
    text = "\n".join(lines) + "\n"
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = cache_folder() / "texts" / f"texts-{name}.jsonl"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)
    return str(path)


def _is_dataset(data: Any) -> bool:
    """Return whether a value is a `datasets.Dataset`, without an import; a DatasetDict is not."""
    is_of_datasets = type(data).__module__.startswith("datasets.")
    return is_of_datasets and hasattr(data, "__len__") and not isinstance(data, Mapping)


# --- entries ---


def entries() -> list[Entry]:
    """Return all entries without drafts, the least recently used first."""
    listed = []
    for kind in KINDS:
        for path in _listed(cache_folder() / kind):
            if not path.name.startswith(".") and path.suffix != ".lock":
                with suppress(OSError):  # deleted in the meantime
                    listed.append(Entry(kind, path, _bytes(path), path.stat().st_mtime))
    return sorted(listed, key=lambda entry: (entry.used, entry.path.name))


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


# --- eviction ---


def trim(max_bytes: int | None = None) -> Removed:
    """Delete the least recently used entries beyond `max_bytes`, by default `limit()`.

    Leftovers of killed processes are deleted first. Nothing is deleted without a limit, or on
    systems without locks.
    """
    max_bytes = limit() if max_bytes is None else max_bytes
    if max_bytes is None or not AVAILABLE:
        return Removed()
    clean()
    listed, deleted, held = entries(), [], []
    total = sum(entry.bytes for entry in listed)
    for entry in listed:
        if total <= max_bytes:
            break
        if _remove(entry):
            deleted.append(entry)
            total -= entry.bytes
        else:
            held.append(entry)
    return Removed(tuple(deleted), tuple(held))


def clear() -> Removed:
    """Delete all entries that no process has locked."""
    clean()
    listed = entries()
    deleted = tuple(entry for entry in listed if _remove(entry))
    return Removed(deleted, tuple(entry for entry in listed if entry not in deleted))


def clean() -> None:
    """Delete leftovers of killed processes."""
    for kind in KINDS:
        for folder in (cache_folder() / kind, *_listed(cache_folder() / kind)):
            remove_leftovers(folder)
    remove_dead(cache_folder() / OFFLOADED)


def _remove(entry: Entry) -> bool:
    """Delete an entry unless a process has locked it; return whether it no longer exists."""
    if entry.kind == OFFLOADED:
        return False  # `clean` has deleted the entries of dead processes
    lock = try_lock(entry.path)
    if lock is None and AVAILABLE:
        return not entry.path.exists()
    renamed = temporary_sibling(entry.path)
    try:
        entry.path.rename(renamed)  # so that no process reads a partly deleted folder
    except OSError:
        return not entry.path.exists()
    finally:
        if lock is not None:
            lock.release()
    if renamed.is_dir():
        shutil.rmtree(renamed, ignore_errors=True)
    else:
        renamed.unlink(missing_ok=True)
    return True


def age(entry: Entry) -> str:
    """Return date and time of the last use."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
