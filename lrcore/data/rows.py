"""Conversion of rows to documents, for local files and hub data sets."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..system.as_json import json_text
from ..system.errors import SHOWN, InputError, quoted, unknown
from .conversations import conversation_fields, conversation_of, has_messages, is_null

MAX_NAMED = 20  # fields in a message
_OPTIONAL = "input"  # can be missing or null
_ALPACA = ("instruction", _OPTIONAL, "output")


class Documents(NamedTuple):
    """Documents in their order.

    skipped: number of rows without a text, which are left out. conversations: for each document,
    the JSON list of its messages; empty for plain text. A document is plain text as well if it
    differs from its conversation. unread_files: number of files of a folder that are not read,
    because most files have another format.
    """

    texts: list[str]
    skipped: int = 0
    conversations: Sequence[str] = ()
    unread_files: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per document from which `documents_of` reads the same document."""
        if not self.conversations:
            return [{"text": text} for text in self.texts]
        return [
            {"messages": messages} if text == conversation else _alpaca_row(messages)
            for text, conversation in zip(self.texts, self.conversations, strict=True)
            for messages in (json.loads(conversation),)
        ]


def documents_of(rows: Sequence[Any], where: str, field: str = "") -> Documents:
    """Return a document per row; a row is a string or a mapping of fields.

    The document of a mapping is the field `field`; without a name, it is the field `text`; or
    instruction, input (optional) and output, a line each, which are a conversation as well; or the
    conversation in `messages`, `conversations`, or `prompt` and `completion`; or the only text
    field. The first row with a text determines the fields, which all rows must have. Rows in which
    a field is null or NaN are skipped, and conversations without a text. where: beginning of
    error messages. Raises InputError for missing rows, fields or texts.
    """
    if not rows:
        raise InputError(f"{where} has no rows. Choose a file or split with text.")
    first = next(filter(_has_text, rows), rows[0])
    chat = () if _is_plain(first, field) else conversation_fields(rows, field)
    if chat:
        return _conversations(rows, chat, where)
    fields = None if isinstance(first, str) else _fields_with_text(first, where, field)
    texts, conversations = [], []
    for number, row in enumerate(rows, start=1):
        if not _is_null_row(row, fields):
            texts.append(_document(row, fields, f"{where}, row {number}"))
            if fields and set(fields) >= {"instruction", "output"}:
                conversations.append(_alpaca_conversation(row))
    skipped = len(rows) - len(texts)
    if not texts:
        raise InputError(f"{where} has no text: all {skipped} rows are null.")
    return Documents(texts, skipped, conversations)


def _conversations(rows: Sequence[Any], fields: tuple[str, ...], where: str) -> Documents:
    read = (
        conversation_of(row, fields, f"{where}, row {number}")
        for number, row in enumerate(rows, start=1)
    )
    texts = [conversation for conversation in read if conversation is not None]
    skipped = len(rows) - len(texts)
    if not texts:
        raise InputError(f"{where} has no text: all {skipped} conversations are empty.")
    return Documents(texts, skipped, texts)


def _is_plain(row: object, field: str) -> bool:
    """Return whether a row is a string, or has the fields of a text."""
    is_text = isinstance(row, dict) and ("text" in row or {"instruction", "output"} <= row.keys())
    return isinstance(row, str) or (is_text and not field)


def _alpaca_conversation(row: dict[str, Any]) -> str:
    request = "\n".join(filter(None, (_text_of(row, name) for name in _ALPACA[:2])))
    messages = [("user", request), ("assistant", row["output"])]
    return json_text(
        [{"role": role, "content": content} for role, content in messages], ensure_ascii=False
    )


def _text_of(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if is_null(value) else str(value)


def _alpaca_row(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"instruction": messages[0]["content"], "output": messages[1]["content"]}


def _has_text(row: object) -> bool:
    values = row.values() if isinstance(row, dict) else (row,)
    return any(isinstance(value, str) or has_messages(value) for value in values)


def _is_null_row(row: object, fields: tuple[str, ...] | None) -> bool:
    """Return whether a row, or a field of its document, is null; a missing field is not null."""
    if is_null(row):
        return True
    if fields is None or not isinstance(row, dict):
        return False
    return any(name in row and is_null(row[name]) for name in fields if name != _OPTIONAL)


def _fields_with_text(row: object, where: str, field: str) -> tuple[str, ...]:
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: a row is of type {type(row).__name__}. Each row must be a string, or an "
            "object with named fields."
        )
    if field and field not in row:
        raise unknown(f"field of {where}", field, map(str, row))
    if field or "text" in row:
        return (field or "text",)
    if "instruction" in row and "output" in row:
        return tuple(name for name in _ALPACA if name in row)
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if len(texts) == 1:
        return (texts[0],)
    first = [
        f"{name[:SHOWN]} ({type(value).__name__})" for name, value in [*row.items()][:MAX_NAMED]
    ]
    listed = ", ".join(first + ["..."] * (len(row) > MAX_NAMED)) or "none"
    raise InputError(
        f"{where}: the text field is ambiguous. Fields: {listed}. "
        "Valid rows have 'text', 'instruction' and 'output' (and 'input'), 'messages', "
        "'conversations', 'prompt' and 'completion', or a single field with a string. Name the "
        "field, as in data.jsonl#content, or rename it to 'text'."
    )


def _document(row: object, fields: tuple[str, ...] | None, where: str) -> str:
    if fields is None:
        values = [row]
    elif isinstance(row, dict):
        values = [row.get(name) for name in fields]
    else:
        raise InputError(
            f"{where}: expected an object with the field {fields[0]}, got {type(row).__name__}."
        )
    for name, value in zip(fields or ("",), values, strict=True):
        if not isinstance(value, str) and not (name == _OPTIONAL and is_null(value)):
            subject = f"field '{name}'" if name else "the row"
            raise InputError(
                f"{where}: {subject} is {type(value).__name__}, not text. Remove or repair the row."
            )
    texts = [str(value) for value in values if not is_null(value) and value]
    return "\n".join(texts)


def parsed(text: str) -> Any:
    """Parse JSON without duplicate fields.

    Raises ValueError for invalid JSON and duplicate fields, RecursionError for too deep nesting.
    """
    return json.loads(text, object_pairs_hook=_without_duplicates)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a text file in the block.

    Raises InputError for a file that is not UTF-8 text or cannot be read.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise InputError(
            f"'{path.name}' is not UTF-8 text ({byte}): it has another encoding or is a binary "
            "file. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise InputError(
            f"Cannot read '{path.name}': {error.strerror or error}. Check that it is a readable "
            "file."
        ) from error


def _without_duplicates(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(fields)
    if len(row) < len(fields):
        names = [name for name, _ in fields]
        duplicate = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"{quoted(duplicate)} occurs twice in an object")
    return row
