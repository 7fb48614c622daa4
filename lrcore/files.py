"""Files and folders that are there whole or not at all: written under another name beside, then
renamed.
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
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: what a killed process leaves there stays
    fcntl = None

# the folder in the cache for tensors that a process keeps on disk as long as it lives
WAITING = "waiting"


def cache_folder() -> Path:
    """Where calibrations are kept, and what waits on disk: $LRCORE_CACHE, else ~/.cache/lrcore."""
    return Path(os.environ.get("LRCORE_CACHE") or Path.home() / ".cache" / "lrcore")


def cache_key(*parts: Any) -> str:
    """A name for what depends on all of `parts`: 24 hexadecimal digits of the sha256 of their JSON.

    parts: JSON-able; of mappings, give sorted items.
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


@contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """The name of a file to write, which takes the place of `path` once the block has ended well;
    after an error nothing is left of it.

    Each draft has a name of its own, so that threads and processes may write one file at once: the
    last to end wins.
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
    """Write a file of UTF-8 whole."""
    with draft_of(path) as draft:
        draft.write_text(text, encoding="utf-8")


def exchange(draft: Path, folder: Path) -> None:
    """Put the folder `draft` in the place of `folder`; what was there goes only once the new one
    stands.
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
    """A name of its own in the same folder, and so on the same file system: a rename is all it
    takes. It begins with a dot.
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@cache
def folder_of_this_process(parent: Path) -> Path:
    """A new folder in `parent` that goes when this process ends; those that killed processes left
    there go now.

    A lock on the file beside it, which the system lets go of however a process ends, says that its
    process lives.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for file in parent.glob("*.lock") if fcntl else ():
        with file.open() as other:
            if _lock(other):
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)
                file.unlink(missing_ok=True)
    own = parent / uuid.uuid4().hex
    mark = own.with_suffix(".lock")
    held = mark.open("w")
    _lock(held)
    own.mkdir()

    def leave() -> None:
        shutil.rmtree(own, ignore_errors=True)
        mark.unlink(missing_ok=True)
        held.close()

    atexit.register(leave)
    return own


def _lock(file) -> bool:
    """Lock an open file for as long as it is open; False where another process holds it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
