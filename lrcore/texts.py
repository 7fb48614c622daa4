"""Texts in memory, wherever the name of a text is expected: they become a file of the cache."""

import hashlib
from collections.abc import Mapping
from typing import Any

from .as_json import json_text
from .files import cache_folder, write_text


def named(data: Any) -> Any:
    """The name of a text: `data` itself, or a .jsonl file in the cache with these documents, under
    a hash of them.

    data: a name; a list or tuple of strings, or of rows with fields; a `datasets.Dataset`. Anything
    else is given back, for whoever checks it. Raises `Shortage` where the cache cannot be written.
    """
    rows = list(data) if _is_dataset(data) else data
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
    """Whether this is a `datasets.Dataset`, without importing it; splits by name are none."""
    theirs = type(data).__module__.startswith("datasets.")
    return theirs and hasattr(data, "__len__") and not isinstance(data, Mapping)
