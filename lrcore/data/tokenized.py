"""Tokenized texts, and their files in the cache."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..system.cache import mark_used, trim
from ..system.errors import ResourceError
from ..system.files import draft_of
from ..system.tensor_files import write_tensors


@dataclass(frozen=True, eq=False)
class Tokenized:
    """A tokenized text: ids [n] int64 and ends [n] int64.

    ends: UTF-8 bytes of the text up to the end of each token, not decreasing (special tokens have
    no bytes); None for tokenizers without offsets. begins: positions of the first tokens of
    conversations, or of their parts, increasing; None for plain text.
    """

    ids: Tensor
    ends: Tensor | None
    begins: Tensor | None = None

    def bytes(self, first: int, last: int) -> int | None:
        """Return the UTF-8 bytes of tokens first..last - 1; None for tokenizers without offsets."""
        if self.ends is None:
            return None
        return int(self.ends[last - 1]) - (int(self.ends[first - 1]) if first else 0)


def read_tokens(file: Path) -> Tokenized | None:
    """Return the text that `keep_tokens` wrote; None if the file is missing or damaged."""
    try:
        if not file.is_file():  # opening a pipe would block
            return None
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
            checksum = (opened.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    if checksum != _checksum(tensors):
        return None
    mark_used(file)
    lengths = tensors.get("lengths")
    return Tokenized(tensors["ids"].long(), None if lengths is None else lengths.cumsum(0))


def keep_tokens(file: Path, text: Tokenized) -> None:
    """Write a plain text to a file of the cache, 8 bytes per token, then evict entries.

    Nothing is written if the cache is not writable.
    """
    tensors = {"ids": text.ids.int()}
    if text.ends is not None:
        tensors["lengths"] = _lengths(text.ends)
    with suppress(ResourceError):
        with draft_of(file) as draft:
            write_tensors(draft, tensors, {"sha256": _checksum(tensors)})
        trim()


def _lengths(ends: Tensor) -> Tensor:
    """Return the bytes of each token [n], int32, from their ends [n]."""
    lengths = ends.int()  # wraps around beyond 2 GiB; the differences are exact
    lengths[1:] -= ends[:-1].int()
    return lengths


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 (hex) of names and values: any value could be a token id."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def bytes_before(text: str) -> NDArray[np.int64]:
    """Return the UTF-8 bytes before each character and at the end, [characters + 1]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate(([0], np.cumsum(sizes)))
