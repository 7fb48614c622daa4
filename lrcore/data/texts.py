"""Texts by one name: built in, a local file, or a data set of the hub."""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Literal, cast

from lrcore.data import files, hub, python_docs, questions, stories
from lrcore.data.held_out import cut, file_and_split
from lrcore.errors import SHOWN, InputError, check_name, quoted, unknown
from lrcore.places import place_of

Role = Literal["calibration", "test"]

BUILTIN: Mapping[str, Callable[..., list[str]]] = {
    "python-docs": python_docs.documents,
    "stories": stories.documents,
}
SPLITS = ("calibration", "test", "train")
MOST_WEIGHT = 1e6  # of a data set in a mixture, and its inverse the least
MIXED = "+"  # between the data sets of a mixture
_WEIGHTED = re.compile(r"\s*(?:([0-9.]+)\s*\*)?\s*(.*?)\s*")  # one of them: "3*stories"
_HALF = re.compile("[\ud800-\udfff]")
_HINT = (
    "Otherwise give a local .txt, .jsonl, .json or .parquet file, or a hub data set as "
    "owner/name:config:split."
)


@dataclass(frozen=True)
class Texts:
    """Documents in a fixed order.

    documents: at least one, not all blank. source: e.g. "stories/calibration". join: the separator
    when they are tokenised as one text. fingerprint: sha256 (hex) of the documents and ``join``.
    part: which part of a file, in words; "" for all of it. whole: the fingerprint of all of it.
    images: the files of images, by the key in their marker "<image:KEY>" (see questions.py).
    Raises InputError where all documents are blank.
    """

    documents: tuple[str, ...]
    source: str
    join: str = "\n\n"
    part: str = ""
    whole: str = ""
    fingerprint: str = ""
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not any(document.strip() for document in self.documents):
            raise InputError(
                f"{self.source} has no text: all of its {len(self.documents)} documents are "
                "blank. Choose another data set or file."
            )
        for number, document in enumerate(self.documents, start=1):
            if half := _HALF.search(document):
                raise InputError(
                    f"{self.source}, document {number}: character {half.start() + 1} is half a "
                    f"surrogate pair (\\u{ord(half[0]):04x}), which no text has. Repair the file."
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
      only field that holds text. ``FILE:test`` is its last tenth, 4,096 characters at least,
      ``FILE:calibration`` the rest, ``FILE:all`` the whole; without a split, the rest for
      ``role="calibration"`` and the whole for ``role="test"``. Each is the whole file where it is
      shorter than four times the least tail;
    - a hub data set ``name``, ``name:config`` or ``name:config:split``, read as the same rows;
      without a split, "test" for ``role="test"`` and "train" for ``role="calibration"``;
      ``revision`` (hub only) is a branch, tag or commit. Its code is never run;
    - questions with images, "shapes" or "scienceqa" (of the hub), or a ``.jsonl`` file of
      questions: each with its right choice is a document (see questions.py);
    - a mixture of built-in and hub data sets, such as "stories+python-docs", or with weights,
      "3*stories+python-docs": documents of all in turns, their characters in proportion to the
      weights (1 where none is given), as many as the set allows that runs out first. Splits follow
      ``role``.

    Raises InputError where the name or split is unknown, a file is missing, empty or unreadable, no
    field holds text, or the hub cannot be reached.
    """
    if role not in ("calibration", "test"):
        raise unknown("role", role, ("calibration", "test"))
    if not isinstance(data, str) or not data.strip():
        raise InputError(
            f"No data set was named (got {data!r}). Known: {', '.join(sorted(BUILTIN))}. {_HINT}"
        )
    check_name(data, "a data set")
    if _is_mixture(data):
        return _mixture(data.split(MIXED), role, revision)
    name, _, split = data.partition("/")
    path, part = ("", "") if name in BUILTIN else file_and_split(data)
    if revision is not None and (name in BUILTIN or path):
        raise InputError(
            f"revision '{revision}' was given for '{data}', but only a hub data set has "
            "revisions. Leave revision out."
        )
    if name in BUILTIN:
        return _builtin(name, split or role)
    if name in questions.PICTURED:
        return _questions(name, split or role)
    if path:
        return _file(path, part or ("all" if role == "test" else role))
    _refuse_misspelling(data, name)
    documents, source = hub.read(data, role, revision)
    return Texts(tuple(documents), source)


def check_named(data: str) -> None:
    """Raise InputError for a misspelt name of what is built in, and for a file that is not there;
    nothing is read, and what may be a name of the hub passes.
    """
    check_name(data, "a data set")
    for _, name in map(_weighted, data.split(MIXED)) if _is_mixture(data) else [(1.0, data)]:
        path = "" if name.partition("/")[0] in BUILTIN else file_and_split(name)[0]
        if path:
            files.check_there(place_of(path))
        elif name.partition("/")[0] not in BUILTIN:
            _refuse_misspelling(name, name.partition("/")[0])


def _is_mixture(data: str) -> bool:
    return (MIXED in data or "*" in data) and not files.looks_like_path(data)


def _mixture(names: list[str], role: Role, revision: str | None) -> Texts:
    """Data sets in proportion to their weights, in characters, to about a document."""
    parts = [_weighted(name) for name in names]
    for _, name in parts:
        first, _, split = name.partition("/")
        if files.looks_like_path(name) or (first in BUILTIN and split) or name.count(":") > 1:
            raise InputError(
                f"A mixture holds built-in and hub data sets without a split; '{name}' is a file "
                "or names a split. Put files together in one file."
            )
    texts = [load_texts(name, role, revision) for _, name in parts]
    weights = [weight for weight, _ in parts]
    unit = min(
        sum(map(len, one.documents)) / weight for one, weight in zip(texts, weights, strict=True)
    )
    placed = []  # each document with the share of its set that is before it
    for one, weight in zip(texts, weights, strict=True):
        before, share = 0, round(unit * weight)
        for document in one.documents:
            if before < share:
                placed.append((before / share, document[: share - before]))
            before += len(document)
    documents = tuple(document for _, document in sorted(placed, key=lambda each: each[0]))
    sources = (
        one.source if weight == 1 else f"{weight:g}*{one.source}"
        for one, weight in zip(texts, weights, strict=True)
    )
    return Texts(documents, f" {MIXED} ".join(sources))


def _weighted(part: str) -> tuple[float, str]:
    """Weight and name of a part of a mixture, such as "3*stories"."""
    found = _WEIGHTED.fullmatch(part)
    weight, name = found.groups() if found else (None, part)
    try:
        number = 1.0 if weight is None else float(weight)
    except ValueError:
        number = 0.0
    if not 1 / MOST_WEIGHT <= number <= MOST_WEIGHT:
        raise InputError(
            f"{quoted(str(weight))} is no weight of a data set in a mixture: write a positive "
            f"number up to a million, such as 3*{name[:SHOWN] or 'stories'}."
        )
    return number, name


def held_out(data: str) -> str:
    """The name of what calibrating on `data` leaves out: "FILE:test" for a local file; `data`
    itself for any other, whose test split is another text.

    Raises InputError for an unknown split of a file.
    """
    path = "" if data.partition("/")[0] in BUILTIN else file_and_split(data)[0]
    return f"{path}:test" if path else data


def apart_from(texts: Texts, seen: Collection[str]) -> Texts:
    """The tail of a file whose rest is among the texts `seen`, given by fingerprint; else the texts
    as they are.
    """
    parts = _parts(texts) if seen and texts.fingerprint not in seen else None
    return parts[1] if parts is not None and parts[0].fingerprint in seen else texts


def overlapping(texts: Texts) -> frozenset[str]:
    """Fingerprints of the texts that hold some of this one: itself, the file that it is a part of,
    and the parts of a whole file.
    """
    parts = None if texts.part else _parts(texts)
    return frozenset(
        (
            texts.fingerprint,
            texts.whole or texts.fingerprint,
            *(one.fingerprint for one in parts or ()),
        )
    )


def _file(path: str, split: str) -> Texts:
    whole = _whole(path)
    parts = None if split == "all" else _parts(whole)
    return whole if parts is None else parts[split == "test"]


def _whole(path: str) -> Texts:
    place = place_of(path)
    if not files.holds_questions(place):
        return Texts(tuple(files.read(place)), path)
    items = questions.read_items(path)
    documents = tuple(map(questions.solved, items))
    return Texts(documents, path, images=questions.images_of(items))


def _questions(name: str, split: str) -> Texts:
    if split not in SPLITS:
        raise unknown(f"split of {name}", split, SPLITS)
    items = questions.read_items(name, split=cast(stories.Split, split))
    documents = tuple(map(questions.solved, items))
    return Texts(documents, f"{name}/{split}", images=questions.images_of(items))


def _parts(whole: Texts) -> tuple[Texts, Texts] | None:
    """What is calibrated on, and the tail; None where a file is too short for both."""
    parts = cut(whole.documents)
    if parts is None:
        return None
    head, tail = (sum(map(len, part)) for part in parts)
    share = f"{tail / (head + tail):.0%}"
    names = (f"without its last {share}, held out", f"its last {share}, held out")
    calibration, test = (
        Texts(
            part,
            f"{whole.source}:{split}",
            whole.join,
            name,
            whole.fingerprint,
            images=whole.images,
        )
        for part, split, name in zip(parts, ("calibration", "test"), names, strict=True)
    )
    return calibration, test


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
