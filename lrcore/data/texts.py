"""Texts by one name: built in, a local file, or a data set of the hub."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from lrcore.data import files, hub, python_docs, stories
from lrcore.errors import InputError, unknown

Role = Literal["calibration", "test"]

BUILTIN: Mapping[str, Callable[..., list[str]]] = {
    "python-docs": python_docs.documents,
    "stories": stories.documents,
}
SPLITS = ("calibration", "test", "train")
_HINT = (
    "Otherwise give a local .txt, .jsonl, .json or .parquet file, or a hub data set as "
    "owner/name:config:split."
)


@dataclass(frozen=True)
class Texts:
    """Documents in a fixed order.

    documents: at least one, not all blank. source: e.g. "stories/calibration". join: the separator
    when they are tokenised as one text. fingerprint: sha256 (hex) of the documents and ``join``.
    Raises InputError where all documents are blank.
    """

    documents: tuple[str, ...]
    source: str
    join: str = "\n\n"
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if not any(document.strip() for document in self.documents):
            raise InputError(
                f"{self.source} has no text: all of its {len(self.documents)} documents are "
                "blank. Choose another data set or file."
            )
        # Set here, not by the caller, so that it is always the hash of the content.
        object.__setattr__(self, "fingerprint", _fingerprint(self.documents, self.join))

    def joined(self) -> str:
        return self.join.join(self.documents)


def _fingerprint(documents: tuple[str, ...], join: str) -> str:
    digest = hashlib.sha256()
    for part in (join, *documents):
        encoded = part.encode("utf-8", "surrogatepass")
        # the length, so that moving the border between two documents is a change
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def load_texts(data: str, role: Role = "calibration", revision: str | None = None) -> Texts:
    """The documents that ``data`` names.

    - a built-in name, "stories" or "python-docs": the split is ``role``; or with a split, such as
      "stories/test";
    - a local ``.txt`` (one document), ``.jsonl``, ``.json`` or ``.parquet`` file: one document per
      row, from the field ``text``, or from ``instruction``, ``input`` and ``output``, or from the
      only field that holds text;
    - a hub data set ``name``, ``name:config`` or ``name:config:split``, read as the same rows;
      without a split, "test" for ``role="test"`` and "train" for ``role="calibration"``;
      ``revision`` (hub only) is a branch, tag or commit. Its code is never run.

    Raises InputError where the name or split is unknown, a file is missing, empty or unreadable, no
    field holds text, or the hub cannot be reached.
    """
    if role not in ("calibration", "test"):
        raise unknown("role", role, ("calibration", "test"))
    if not isinstance(data, str) or not data.strip():
        raise InputError(
            f"No data set was named (got {data!r}). Known: {', '.join(sorted(BUILTIN))}. {_HINT}"
        )
    name, _, split = data.partition("/")
    is_path = files.looks_like_path(data)
    if revision is not None and (name in BUILTIN or is_path):
        raise InputError(
            f"revision '{revision}' was given for '{data}', but only a hub data set has "
            "revisions. Leave revision out."
        )
    if name in BUILTIN:
        return _builtin(name, split or role)
    if is_path:
        return Texts(tuple(files.read(Path(data).expanduser())), data)
    _refuse_misspelling(data, name)
    documents, source = hub.read(data, role, revision)
    return Texts(tuple(documents), source)


@cache
def _builtin(name: str, split: str) -> Texts:
    if split not in SPLITS:
        raise unknown(f"split of {name}", split, SPLITS)
    return Texts(tuple(BUILTIN[name](split)), f"{name}/{split}")


def _refuse_misspelling(data: str, name: str) -> None:
    # A name without an owner may be an old one of the hub ("imdb"). If it is close to a built-in
    # name, it counts as a misspelling and is not looked up online.
    bare = ":" not in data and ("/" not in data or data.partition("/")[2] in SPLITS)
    if bare and get_close_matches(name.lower(), BUILTIN, n=1, cutoff=0.6):
        raise unknown("data set", name, BUILTIN, _HINT)
