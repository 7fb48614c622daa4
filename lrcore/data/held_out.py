"""The tail of a text file, which calibration leaves out so that it can be measured on."""

from collections.abc import Sequence

from lrcore.data import files
from lrcore.errors import unknown
from lrcore.places import place_of

SHARE = 0.1  # of a file's characters
LEAST = 4096  # characters, about a thousand tokens: fewer say little about a model
MOST = 0.25  # of a file's characters: where `LEAST` is more, the file serves for one thing alone
NEAR = 400  # characters within which a line or a word ends
SPLITS = ("calibration", "test", "all")

Documents = tuple[str, ...]


def file_and_split(data: str) -> tuple[str, str]:
    """The file and the split of "FILE:calibration", "FILE:test" or "FILE:all"; ("", "") for what
    names no local file, and no split where none is named.

    Raises InputError for an unknown split of a file that is there.
    """
    name, _, split = data.rpartition(":")
    if name and not _is_file(data):
        if split in SPLITS and files.looks_like_path(name):
            return name, split
        if _is_file(name):
            raise unknown(f"split of '{name}'", split, SPLITS)
    return (data, "") if files.looks_like_path(data) else ("", "")


def cut(documents: Sequence[str]) -> tuple[Documents, Documents] | None:
    """What is calibrated on, and the tail; None where there is too little for both.

    The tail has a tenth of the characters, 4,096 at least. It begins with a document where one
    begins about there, else with a line or a word.
    """
    total = sum(map(len, documents))
    wanted = max(LEAST, round(SHARE * total))
    if wanted > MOST * total:
        return None
    after, last = 0, len(documents)  # characters of the documents from `last` on
    while after + len(documents[last - 1]) <= wanted:
        last -= 1
        after += len(documents[last])
    if after >= wanted / 2:
        head, tail = tuple(documents[:last]), tuple(documents[last:])
    else:
        divided = documents[last - 1]
        at = _border(divided, len(divided) - (wanted - after))
        head = (*documents[: last - 1], divided[:at])
        tail = (divided[at:], *documents[last:])
    has_text = all(any(one.strip() for one in part) for part in (head, tail))
    return (head, tail) if has_text else None


def _border(text: str, at: int) -> int:
    """Where the next line begins, else the next word; `at` itself where neither is near."""
    for mark in ("\n", " "):
        place = text.find(mark, at, at + NEAR)
        if place >= 0:
            return place + 1
    return at


def _is_file(name: str) -> bool:
    try:
        return place_of(name).is_file()
    except OSError:  # a name too long for the file system
        return False
