"""Texts by name: built-in texts, local files, and data sets of the hub."""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal, cast

from ..system.errors import SHOWN, InputError, check_name, quoted, shown, unknown
from ..system.path_access import place_of
from . import hub, python_docs, questions, stories
from . import text_files as files
from .held_out import cut, file_and_split
from .rows import Documents

Role = Literal["calibration", "test"]

BUILTIN: Mapping[str, Callable[..., list[str]]] = {
    "python-docs": python_docs.documents,
    "stories": stories.documents,
}
SPLITS = ("calibration", "test", "train")
MAX_WEIGHT = 1e6  # of a data set in a mixture; the minimum is the inverse
MIXED = "+"  # separates the data sets of a mixture
_WEIGHTED = re.compile(r"\s*(?:([0-9.]+)\s*\*)?\s*(.*?)\s*")  # such as "3*stories"
_SURROGATE = re.compile("[\ud800-\udfff]")
_HINT = (
    "Or enter a local file (.txt, .md, .jsonl, .json, .csv or .parquet), or a hub data set as "
    "owner/name:config:split."
)


@dataclass(frozen=True)
class Texts:
    """Documents in a fixed order.

    documents: at least one is not blank. source: such as "stories/calibration". join: separator of
    the documents in the tokenized text. fingerprint: sha256 (hex) of documents and `join`. part:
    description of the part of a file; file_fingerprint: fingerprint of the complete file; both are
    "" unless the text is a part. images: files of images, by the key in the marker "<image:KEY>"
    (see questions.py). skipped: number of rows of the source without a text, which are left out.
    conversations: for each document, the JSON list of its messages (see conversations.py); empty
    for plain text. unread_files: number of files of a folder that are not read, because most files
    have another format.
    Raises InputError if all documents are blank.
    """

    documents: tuple[str, ...]
    source: str
    join: str = "\n\n"
    part: str = ""
    file_fingerprint: str = ""
    fingerprint: str = ""
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    skipped: int = 0
    conversations: tuple[str, ...] = field(default=(), repr=False)
    unread_files: int = 0

    def __post_init__(self) -> None:
        if not any(document.strip() for document in self.documents):
            raise InputError(
                f"{self.name} has no text: all {len(self.documents)} documents are "
                "blank. Choose another data set or file."
            )
        for number, document in enumerate(self.documents, start=1):
            if match := _SURROGATE.search(document):
                raise InputError(
                    f"{self.name}, document {number}: character {match.start() + 1} is half a "
                    f"surrogate pair (\\u{ord(match[0]):04x}), which is invalid. Repair the file."
                )
        # Computed even if a caller passed a value (`dataclasses.replace` does), so that the
        # fingerprint always matches the documents.
        object.__setattr__(self, "fingerprint", _fingerprint(self.documents, self.join))

    @property
    def remarks(self) -> dict[str, str | int]:
        """Entries of a protocol about the part of a file, skipped rows and unread files, if any."""
        remarks: dict[str, str | int] = {
            "part": self.part,
            "skipped_rows": self.skipped,
            "unread_files": self.unread_files,
        }
        return {name: value for name, value in remarks.items() if value}

    @property
    def needs_template(self) -> bool:
        """Whether the documents are conversations only, which have no form as plain text."""
        return bool(self.conversations) and self.conversations == self.documents

    def as_plain_text(self, reader: str) -> "Texts":
        """Return the documents without their form as conversations.

        reader: what reads plain text only, for the message. Raises InputError for conversations
        that have no other form.
        """
        if self.needs_template:
            raise InputError(f"{reader} plain text, but {self.name} has conversations.")
        return replace(self, conversations=()) if self.conversations else self

    def first_conversations(self, characters: int) -> "Texts":
        """Return the first conversations that begin within a number of characters."""
        before = accumulate(map(len, self.documents), initial=0)
        count = sum(1 for size in before if size < characters)
        return replace(
            self, documents=self.documents[:count], conversations=self.conversations[:count]
        )

    def joined(self) -> str:
        return self.join.join(self.documents)

    @property
    def name(self) -> str:
        """The source, without the folder of an absolute path."""
        return Path(self.source).name if Path(self.source).is_absolute() else self.source


def _fingerprint(documents: tuple[str, ...], join: str) -> str:
    digest = hashlib.sha256()
    for part in (join, *documents):
        encoded = part.encode("utf-8", "surrogatepass")
        # The length makes the hash depend on the borders between documents.
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def load_texts(data: str, role: Role = "calibration", revision: str | None = None) -> Texts:
    """Return the documents that `data` names.

    - Built-in text: "stories" or "python-docs", with the split `role`, or "stories/test".
    - Local file: .txt or .md (a single document), or .jsonl, .ndjson, .json, .csv, .tsv or .parquet
      with a document per row, from the field `text`, from `instruction`, `input` and `output`, from
      a conversation (`messages`, `conversations`, or `prompt` and `completion`), or from the only
      text field. "FILE#FIELD" names another field, also of a hub data set. Rows without a text are
      skipped. Files other than .parquet can be packed by gzip (.jsonl.gz).
      "FILE:test" is the last tenth, at least 4,096 characters; "FILE:calibration" is the remainder;
      "FILE:all" is the complete file. Without a split, "calibration" is used for the role
      "calibration" and "all" for "test". A file that is too short is not divided.
    - Hub data set: `name`, `name:config` or `name:config:split`, with the same fields. The default
      split is "test" for the role "test" and "train" for "calibration". `revision` (hub only) is a
      branch, tag or commit. The code of a data set is not run.
    - Questions: "shapes", "scienceqa" (of the hub) or a .jsonl file of questions; a question with
      the correct choice is a document (see questions.py).
    - Mixture of built-in and hub data sets: "stories+python-docs", or with weights
      "3*stories+python-docs". Documents alternate, with characters in proportion to the weights
      (default 1), until a data set is exhausted. The split is `role`.

    Raises InputError for an unknown name or split, a missing, empty or unreadable file, a data set
    without text, and if the hub cannot be reached.
    """
    if role not in ("calibration", "test"):
        raise unknown("role", role, ("calibration", "test"))
    if not isinstance(data, str) or not data.strip():
        raise InputError(
            f"No data set given (got {data!r}). Known: {', '.join(sorted(BUILTIN))}. {_HINT}"
        )
    check_name(data, "a data set")
    if _is_mixture(data):
        return _mixture(data.split(MIXED), role, revision)
    name, _, split = data.partition("/")
    path, part = ("", "") if name in BUILTIN else file_and_split(data)
    if revision is not None and (name in BUILTIN or path):
        raise InputError(
            f"revision '{revision}' was given for '{data}', but only hub data sets have "
            "revisions. Omit the revision."
        )
    if name in BUILTIN:
        return _builtin(name, split or role)
    if name in questions.PICTURED:
        return _questions(name, split or role)
    if path:
        return _file(path, part or ("all" if role == "test" else role))
    _refuse_misspelling(data, name)
    return _texts(*hub.read(data, role, revision))


def load_test_texts(data: str) -> Texts:
    """Return the texts that evaluation reads: those of the role "test".

    A data set with a single split, such as a folder of .txt files, is read completely. Raises
    InputError as `load_texts` does.
    """
    try:
        return load_texts(data, "test")
    except hub.NoTestSplit:
        if _is_mixture(data):  # the other data sets have test splits
            raise
        return load_texts(data, "calibration")


def check_named(data: str) -> None:
    """Raise InputError for a misspelled built-in name and for a missing file.

    The check reads no data. It accepts any other name, which may be a data set of the hub.
    """
    check_name(data, "a data set")
    for _, name in map(_weighted, data.split(MIXED)) if _is_mixture(data) else [(1.0, data)]:
        path = "" if name.partition("/")[0] in BUILTIN else file_and_split(name)[0]
        if path:
            files.check_there(place_of(files.file_and_field(path)[0]))
        elif name.partition("/")[0] not in BUILTIN:
            _refuse_misspelling(name, name.partition("/")[0])


def with_text_field(data: str | None, field: str) -> str:
    """Return the name of a data set with the field of its texts: "NAME#FIELD" or "FILE#FIELD:test".

    Raises InputError without a data set or a valid field, for built-in texts and mixtures, which
    have no fields, and for a name that already has a field.
    """
    if not isinstance(field, str) or not field or "/" in field or "#" in field:
        raise InputError(f"{shown(field)} is not a valid text field. Enter the name of a field.")
    if not isinstance(data, str) or not data:
        raise InputError(f"The text field '{field}' needs a data set. Name a file or hub data set.")
    if data.partition("/")[0] in BUILTIN or _is_mixture(data):
        raise InputError(f"'{data}' has no fields; got the text field '{field}'. Omit it.")
    path, split = file_and_split(data)
    name = path or data
    if files.file_and_field(name)[1]:
        raise InputError(f"'{data}' already names a field; got the text field '{field}'. Omit one.")
    return f"{name}#{field}" + (f":{split}" if split else "")


def _is_mixture(data: str) -> bool:
    return (MIXED in data or "*" in data) and not files.looks_like_path(data)


def _mixture(names: list[str], role: Role, revision: str | None) -> Texts:
    """Return documents of data sets in proportion to their weights, in characters."""
    parts = [_weighted(name) for name in names]
    for _, name in parts:
        first, _, split = name.partition("/")
        if files.looks_like_path(name) or (first in BUILTIN and split) or name.count(":") > 1:
            raise InputError(
                f"A mixture consists of built-in and hub data sets without a split, but '{name}' "
                "is a file or has a split. To mix files, concatenate them."
            )
    texts = [load_texts(name, role, revision) for _, name in parts]
    for text in texts:
        if text.needs_template:
            raise InputError(
                f"A mixture consists of plain text, but {text.name} has conversations. Write all "
                "conversations to one file."
            )
    weights = [weight for weight, _ in parts]
    unit = min(  # characters per unit of weight, so that the scarcest data set is used completely
        sum(map(len, text.documents)) / weight for text, weight in zip(texts, weights, strict=True)
    )
    positioned = []  # (fraction of the data set before the document, document)
    for text, weight in zip(texts, weights, strict=True):
        before, size = 0, round(unit * weight)
        for document in text.documents:
            if before < size:
                positioned.append((before / size, document[: size - before]))
            before += len(document)
    documents = tuple(document for _, document in sorted(positioned, key=lambda pair: pair[0]))
    sources = (
        text.source if weight == 1 else f"{weight:g}*{text.source}"
        for text, weight in zip(texts, weights, strict=True)
    )
    return Texts(documents, f" {MIXED} ".join(sources))


def _weighted(part: str) -> tuple[float, str]:
    """Return weight and name of a part of a mixture, such as "3*stories"."""
    match = _WEIGHTED.fullmatch(part)
    weight, name = match.groups() if match else (None, part)
    try:
        number = 1.0 if weight is None else float(weight)
    except ValueError:
        number = 0.0
    if not 1 / MAX_WEIGHT <= number <= MAX_WEIGHT:
        raise InputError(
            f"{quoted(str(weight))} is not a valid weight of a data set in a mixture. Enter a "
            f"positive number up to a million, such as 3*{name[:SHOWN] or 'stories'}."
        )
    return number, name


def held_out(data: str) -> str:
    """Return the name of the text that calibration on `data` omits: "FILE:test" for a local file,
    else `data`, whose test split is a different text.

    Raises InputError for an unknown split of a file.
    """
    path = "" if data.partition("/")[0] in BUILTIN else file_and_split(data)[0]
    return f"{path}:test" if path else data


def apart_from(texts: Texts, seen: Collection[str]) -> Texts:
    """Return texts that a model can be tested on, without the documents that it has seen.

    seen: fingerprints of the calibration and training texts of the model. If they include the
    calibration part of this file, the result is the held-out tail of the file. Otherwise it is
    `texts`.
    """
    parts = _parts(texts) if seen and texts.fingerprint not in seen else None
    return parts[1] if parts is not None and parts[0].fingerprint in seen else texts


def overlapping(texts: Texts) -> frozenset[str]:
    """Return the fingerprints of texts that overlap: the text, the complete file, and the parts."""
    parts = None if texts.part else _parts(texts)
    return frozenset(
        (
            texts.fingerprint,
            texts.file_fingerprint or texts.fingerprint,
            *(part.fingerprint for part in parts or ()),
        )
    )


def _file(path: str, split: str) -> Texts:
    complete = _complete_file(path)
    parts = None if split == "all" else _parts(complete)
    return complete if parts is None else parts[split == "test"]


def _complete_file(name: str) -> Texts:
    file, field_name = files.file_and_field(name)
    path = place_of(file)
    if field_name or not files.holds_questions(path):
        return _texts(files.read(path, field_name), name)
    items = questions.read_items(name)
    solved = tuple(map(questions.solved, items))
    return Texts(solved, name, images=questions.images_of(items))


def _texts(documents: Documents, source: str) -> Texts:
    return Texts(
        tuple(documents.texts),
        source,
        skipped=documents.skipped,
        conversations=tuple(documents.conversations),
        unread_files=documents.unread_files,
    )


def _questions(name: str, split: str) -> Texts:
    if split not in SPLITS:
        raise unknown(f"split of {name}", split, SPLITS)
    items = questions.read_items(name, split=cast(stories.Split, split))
    documents = tuple(map(questions.solved, items))
    return Texts(documents, f"{name}/{split}", images=questions.images_of(items))


def _parts(texts: Texts) -> tuple[Texts, Texts] | None:
    """Return the texts for calibration and the held-out tail, or None for a short file."""
    parts = cut(texts.documents, is_divisible=not texts.conversations)
    if parts is None:
        return None
    count = len(parts[0]) if texts.conversations else 0
    conversations = (texts.conversations[:count], texts.conversations[count:])
    head, tail = (sum(map(len, part)) for part in parts)
    share = f"{tail / (head + tail):.0%}"
    descriptions = (f"without its last {share}, held out", f"its last {share}, held out")
    calibration, test = (
        Texts(
            documents,
            f"{texts.source}:{split}",
            texts.join,
            part=description,
            file_fingerprint=texts.fingerprint,
            images=texts.images,
            skipped=texts.skipped,
            conversations=part_conversations,
        )
        for documents, split, description, part_conversations in zip(
            parts, ("calibration", "test"), descriptions, conversations, strict=True
        )
    )
    return calibration, test


@cache
def _builtin(name: str, split: str) -> Texts:
    if split not in SPLITS:
        raise unknown(f"split of {name}", split, SPLITS)
    return Texts(tuple(BUILTIN[name](split)), f"{name}/{split}")


def _refuse_misspelling(data: str, name: str) -> None:
    # The hub has names without an owner ("imdb"). A name similar to a built-in name is treated as a
    # misspelling and is not looked up.
    is_bare = ":" not in data and ("/" not in data or data.partition("/")[2] in SPLITS)
    if is_bare and get_close_matches(name.lower(), BUILTIN, n=1, cutoff=0.6):
        raise unknown("data set", name, BUILTIN, _HINT)
