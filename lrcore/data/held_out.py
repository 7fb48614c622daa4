"""Held-out tail of a text file, which calibration omits and evaluation uses."""

from collections.abc import Sequence

from ..system.errors import unknown
from ..system.path_access import place_of
from . import text_files as files

SHARE = 0.1  # of the characters of a file
MIN_CHARACTERS = 4096  # of the tail, about a thousand tokens
MAX_SHARE = 0.25  # if `MIN_CHARACTERS` is a larger share, the file is not divided
NEAR = 400  # characters in which the end of a line or a word is searched
SPLITS = ("calibration", "test", "all")

Documents = tuple[str, ...]


def file_and_split(data: str) -> tuple[str, str]:
    """Return file and split of "FILE:calibration", "FILE:test" or "FILE:all"; the split of "FILE"
    is "", and other names give ("", "").

    Raises InputError for an unknown split of an existing file.
    """
    name, _, split = data.rpartition(":")
    if name and not _is_file(data):
        if split in SPLITS and files.looks_like_path(name):
            return name, split
        if _is_file(name):
            raise unknown(f"split of '{name}'", split, SPLITS)
    return (data, "") if files.looks_like_path(data) else ("", "")


def cut(documents: Sequence[str], is_divisible: bool = True) -> tuple[Documents, Documents] | None:
    """Return the documents for calibration and the tail, or None for a text that is too short.

    The tail has a tenth of the characters, at least 4,096. It begins with a document, or with a
    line or a word if no document begins near the intended position. Without is_divisible, it
    always begins with a document, and the result is None if that makes the tail too large.
    """
    total = sum(map(len, documents))
    size = max(MIN_CHARACTERS, round(SHARE * total))
    if size > MAX_SHARE * total:
        return None
    after, last = 0, len(documents)  # characters of the documents from `last` on
    while after + len(documents[last - 1]) <= size:
        last -= 1
        after += len(documents[last])
    if not is_divisible and after < size / 2:
        last -= 1
        after += len(documents[last])
        if after > MAX_SHARE * total:
            return None
    if after >= size / 2:
        head, tail = tuple(documents[:last]), tuple(documents[last:])
    else:
        divided = documents[last - 1]
        border = _border(divided, len(divided) - (size - after))
        head = (*documents[: last - 1], divided[:border])
        tail = (divided[border:], *documents[last:])
    has_text = all(any(document.strip() for document in part) for part in (head, tail))
    return (head, tail) if has_text else None


def _border(text: str, position: int) -> int:
    """Return the begin of the next line or word within `NEAR` characters, else `position`."""
    for mark in ("\n", " "):
        found_at = text.find(mark, position, position + NEAR)
        if found_at >= 0:
            return found_at + 1
    return position


def _is_file(name: str) -> bool:
    try:
        return place_of(name).is_file()
    except OSError:  # the name is too long for the file system
        return False
