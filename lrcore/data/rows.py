"""From rows of fields to documents, for local files and hub data sets."""

import json
from collections.abc import Sequence
from typing import Any

from lrcore.errors import SHOWN, InputError, quoted

MOST = 20  # fields that are named in a sentence
_ALPACA = ("instruction", "input", "output")


def documents_of(rows: Sequence[Any], where: str) -> list[str]:
    """One document per row; a row is a string or a mapping of fields.

    Of a mapping: its ``text``; or its instruction, input (if any) and output, one per line; or its
    only field that holds text. The fields are chosen from the first row and required of every row.
    Raises InputError, which begins with ``where``, for no rows or no text.
    """
    if not rows:
        raise InputError(f"{where} has no rows. Choose a file or split with text.")
    if isinstance(rows[0], str):
        fields = None
    else:
        fields = _fields_with_text(rows[0], where)
    return [
        _document(row, fields, f"{where}, row {number}") for number, row in enumerate(rows, start=1)
    ]


def _fields_with_text(row: object, where: str) -> tuple[str, ...]:
    if not isinstance(row, dict):
        raise InputError(
            f"{where}: a row is a JSON {type(row).__name__}, expected an object with named fields "
            "or a string."
        )
    if "text" in row:
        return ("text",)
    if "instruction" in row and "output" in row:
        return tuple(name for name in _ALPACA if name in row)
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if len(texts) == 1:
        return (texts[0],)
    first = [f"{name[:SHOWN]} ({type(value).__name__})" for name, value in [*row.items()][:MOST]]
    listed = ", ".join(first + ["..."] * (len(row) > MOST)) or "none"
    raise InputError(
        f"{where}: cannot tell which field is the text. Fields found: {listed}. "
        "Needed: 'text', or 'instruction' and 'output' (and 'input'), or exactly one field that "
        "holds a string. Rename one to 'text'."
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
        if not isinstance(value, str) and not (name == "input" and value is None):
            what = f"field '{name}'" if name else "the row"
            raise InputError(
                f"{where}: {what} is {type(value).__name__}, expected text. Remove or repair the "
                "row."
            )
    texts = [str(value) for value in values if value]  # all are text, or an absent "input"
    return "\n".join(texts)


def parsed(text: str) -> Any:
    """JSON in which no field of an object stands twice: which would be meant? Raises ValueError
    where one does, and for what is no JSON, RecursionError for what is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once_each)


def _once_each(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(fields)
    if len(row) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"{quoted(twice)} stands twice in one object")
    return row
