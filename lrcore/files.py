"""Atomic writes of files and folders, the cache folder, and temporary folders per process.

A file or folder is written under another name in the same place, then renamed.
"""

import atexit
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows: temporary folders of a killed process are not cleaned up
    fcntl = None  # type: ignore[assignment]  # a module that may be absent

OFFLOADED = "offloaded"  # folder in the cache for tensors that a running process has offloaded


def cache_folder() -> Path:
    """Folder of cached calibrations and offloaded tensors: $LRCORE_CACHE, else ~/.cache/lrcore."""
    return Path(os.environ.get("LRCORE_CACHE") or Path.home() / ".cache" / "lrcore")


def cache_key(*parts: Any) -> str:
    """Name of a cache entry: 24 hexadecimal digits of the sha256 of the JSON of all `parts`.

    parts: JSON-able; the order of a mapping's items does not count.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """A temporary file to write, renamed to `path` at the end of the block, deleted after an error.

    Each draft has a unique name, so threads and processes may write one file at the same time: the
    last to finish wins.
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = beside(path)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def exchange(draft: Path, folder: Path) -> None:
    """Replace `folder` by the folder `draft`; the old one is deleted last.

    Raises OSError where the rename fails; the old folder is then back in its place.
    """
    if not folder.exists():
        draft.rename(folder)
        return
    old = beside(folder)
    folder.rename(old)
    try:
        draft.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def beside(path: Path) -> Path:
    """A unique hidden name in the same folder, thus on the same file system for a rename."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@cache
def folder_of_this_process(parent: Path) -> Path:
    """A new folder in `parent`, deleted when this process ends; leftovers of dead processes go now.

    A process holds a lock on the file beside its folder. The system releases the lock however the
    process ends, so a folder without a locked file is a leftover.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for file in parent.glob("*.lock") if fcntl else ():
        with file.open() as other:
            if _lock(other):
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)
                file.unlink(missing_ok=True)
    own = parent / uuid.uuid4().hex
    lock = own.with_suffix(".lock")
    opened = lock.open("w")
    _lock(opened)
    own.mkdir()

    def clean_up() -> None:
        shutil.rmtree(own, ignore_errors=True)
        lock.unlink(missing_ok=True)
        opened.close()

    atexit.register(clean_up)
    return own


def _lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed; False where another process holds the lock."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
