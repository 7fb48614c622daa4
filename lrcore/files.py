"""Files and folders that are there whole or not at all: written under another name beside, then renamed."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAITING = "waiting"  # the folder in the cache for tensors that a process keeps on disk as long as it lives


def cache_folder() -> Path:
    """Where calibrations are kept, and what waits on disk: $LRCORE_CACHE, else ~/.cache/lrcore."""
    return Path(os.environ.get("LRCORE_CACHE") or Path.home() / ".cache" / "lrcore")


@contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """The name of a file to write, which takes the place of `path` once the block has ended well; after an error nothing is left of it.

    Each draft has a name of its own, so that threads and processes may write one file at once: the last to end wins.
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
    """Put the folder `draft` in the place of `folder`; what was there goes only once the new one stands."""
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
    """A name of its own in the same folder, and so on the same file system: a rename is all it takes. It begins with a dot."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
