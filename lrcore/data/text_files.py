"""Local text files, with a reader per extension."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..system.as_json import json_text
from ..system.errors import InputError, quoted, shown
from ..system.files import write_text
from ..system.memory import free_memory, raise_unless_free
from ..system.path_access import place_of
from .extensions import GZIP, PLAIN, ending
from .parquet import COPIES, read_rows
from .questions import has_questions
from .rows import Documents, documents_of, parsed, reading

# Minimum memory per byte of a file until it is tokenized: a character of up to four bytes takes
# `tokens.PER_CHARACTER`. Checked before a file of gigabytes is read.
PER_BYTE = 32
MAX_ROW = 2**27  # characters of a question, which can contain an image, and of a cell of a table
CHUNK = 2**20  # bytes that are unpacked at a time


def looks_like_path(data: str) -> bool:
    """Return whether `data` names a local file: it exists, has a known extension, or begins like a
    path. Folders are data sets, not files, also as "FOLDER:config:split".
    """
    data, _ = file_and_field(data)
    path = place_of(data)
    try:
        if path.is_file():
            return True
    except OSError:  # the name is too long for the file system
        return False
    folder, *parts = data.split(":")
    is_folder = place_of(folder).is_dir() and not any("/" in part for part in parts)
    return ending(path) in READERS or (data.startswith(("/", "./", "../", "~")) and not is_folder)


def file_and_field(data: str) -> tuple[str, str]:
    """Return name and field of "NAME#FIELD"; the field of "NAME" is ""."""
    name, _, field = data.rpartition("#")
    try:
        is_file = place_of(data).is_file()  # a file with this character in its name
    except OSError:  # the name is too long for the file system
        is_file = False
    return (data, "") if is_file or not name or "/" in field else (name, field)


def read(path: Path, field: str = "") -> Documents:
    """Return the documents of a file.

    field: of the rows; see `documents_of`. Raises InputError if the file is missing, empty or
    unreadable, and for a field of a file without rows.
    """
    check_there(path)
    reader = READERS.get(ending(path))
    if reader is None:
        raise InputError(
            f"Cannot read '{path.name}': unknown extension '{path.suffix}'. Known: "
            f"{', '.join(READERS)}. Convert or rename the file."
        )
    if field and reader is _text:
        raise InputError(f"'{path.name}' has no fields; got #{field}. Omit the field.")
    with reading(path):
        if path.stat().st_size == 0:
            raise InputError(f"'{path.name}' is empty (0 bytes). Choose a file with text.")
        is_packed = reader is read_rows  # the reader checks the unpacked size
        size = (COPIES if is_packed else PER_BYTE) * path.stat().st_size
        remedy = "Use a part of the file, or free memory."
        raise_unless_free(size, f"The texts of '{path.name}'", remedy, free_memory())
        rows = reader(path)
        name = f"'{path.name}'"
        return documents_of(rows, name, field) if reader is not _text else Documents(rows)


def check_there(path: Path) -> None:
    """Raise InputError for a missing file, with a file of a similar name."""
    if not path.exists():
        raise InputError(
            f"No file '{path}'.{_neighbor(path)} Relative paths start at {Path.cwd()}."
        )


def holds_questions(path: Path) -> bool:
    """Return whether a file is a .jsonl file whose first row is a multiple-choice question."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = iter(lambda: file.readline(MAX_ROW), "")
            first = next((line for line in lines if line.strip()), "")
        return has_questions(json.loads(first))
    except (OSError, ValueError, RecursionError):  # the reader of the file reports it
        return False


def write_texts(texts: Iterable[Any], path: str | Path) -> str:
    """Write documents to a .jsonl file and return its name, a valid value of every `data` argument.

    texts: strings, or rows with the same fields as in files, also conversations. Lists, generators,
    data sets of `datasets`, data frames, and arrays of pandas, numpy, polars or pyarrow are read.
    Rows without a text are skipped. An existing file is replaced. Raises InputError for missing
    texts, a mapping of splits (`datasets.DatasetDict`), other values, and a name that does not end
    in .jsonl.
    """
    if isinstance(texts, Mapping):
        names = ", ".join(map(str, texts))
        raise InputError(f"texts is a mapping ({shown(names)}). Pass a value of this mapping.")
    if Path(path).suffix.lower() != ".jsonl":
        raise InputError(f"'{path}' is not a valid name for texts. Enter a name with .jsonl.")
    lines = map(json_text, documents_of(_rows_in(texts), "texts").rows())
    write_text(path, "\n".join(lines) + "\n")
    return str(path)


def _rows_in(texts: Any) -> list[Any]:
    """Return the rows of texts in memory: strings, or dictionaries by field."""
    if isinstance(texts, str):
        return [texts]
    if hasattr(texts, "with_format"):  # of `datasets`, whose rows can be tables by the format
        texts = texts.with_format(None)
    elif hasattr(texts, "to_pylist"):  # pyarrow
        texts = texts.to_pylist()
    elif hasattr(texts, "to_dicts"):  # a data frame of polars
        texts = texts.to_dicts()
    elif hasattr(texts, "columns") and hasattr(texts, "to_dict"):  # a data frame of pandas
        texts = texts.to_dict("records")
    # Iterating over any other table would yield the names of its columns.
    if isinstance(texts, bytes) or hasattr(texts, "columns") or not _is_iterable(texts):
        raise InputError(
            f"texts is of type {type(texts).__name__}. Pass a list of strings or of rows."
        )
    return [
        {name: _without_arrays(value) for name, value in row.items()}
        if isinstance(row, Mapping)
        else row
        for row in texts
    ]


def _without_arrays(value: Any) -> Any:
    """Return the elements of an array of numpy, as pandas reads lists from parquet files."""
    return value.tolist() if getattr(value, "ndim", 0) else value


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:  # also of an array without dimensions
        return False
    return True


def _neighbor(path: Path) -> str:
    if not path.parent.is_dir():
        return f" Its folder '{path.parent}' does not exist either."
    near = get_close_matches(
        path.name, [entry.name for entry in path.parent.iterdir()], n=1, cutoff=0.6
    )
    return f" Did you mean '{path.with_name(near[0])}'?" if near else ""


def _content(path: Path) -> str:
    """Return the text of a file, unpacked by gzip if it has its extension."""
    if path.suffix.lower() != GZIP:
        return path.read_text(encoding="utf-8-sig")
    parts, size, remedy = [], 0, "Use a part of the file, or free memory."
    try:
        with gzip.open(path) as file:
            while part := file.read(CHUNK):
                parts.append(part)
                size += len(part)
                raise_unless_free(
                    PER_BYTE * size, f"The texts of '{path.name}'", remedy, free_memory()
                )
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"'{path.name}' is not a complete gzip file ({error}). Check that the copy is complete."
        ) from error
    return b"".join(parts).decode("utf-8-sig")


def _text(path: Path) -> list[str]:
    return [_content(path)]


def _csv(path: Path) -> list[Any]:
    """Return the rows of a table with a header; empty cells are null.

    The delimiter is the most frequent of comma, semicolon, tab and bar in the first line. Raises
    InputError for duplicate names and for rows with more cells than the header.
    """
    text = _content(path)
    delimiter = max(",;\t|", key=text.partition("\n")[0].count)
    csv.field_size_limit(MAX_ROW)
    try:
        table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        header, *rows = [row for row in table if row] or [[]]
    except csv.Error as error:
        raise InputError(
            f"'{path.name}' is not a valid table: {error}. Repair the file."
        ) from error
    if duplicate := next((name for name in header if name and header.count(name) > 1), ""):
        raise InputError(
            f"'{path.name}': {quoted(duplicate)} occurs twice in the header. Rename a column."
        )
    for number, row in enumerate(rows, start=1):
        if any(row[len(header) :]):
            raise InputError(
                f"'{path.name}', row {number} has {len(row)} cells, but the header has "
                f"{len(header)}. Quote cells that contain {quoted(delimiter)}."
            )
    return [
        {name: cell or None for name, cell in zip_longest(header, row[: len(header)])}
        for row in rows
    ]


def _json_lines(path: Path) -> list[Any]:
    rows = []
    # not splitlines(): JSON strings can contain U+2028, which it treats as a line end
    for number, line in enumerate(_content(path).split("\n"), start=1):
        if line.strip():
            rows.append(_parse(line, f"line {number} of '{path.name}'"))
    return rows


def _json(path: Path) -> list[Any]:
    rows = _parse(_content(path), f"'{path.name}'")
    if not isinstance(rows, list):
        raise InputError(
            f"'{path.name}' contains a JSON {type(rows).__name__}, not a list of rows. Wrap them "
            "in [...], or use .jsonl."
        )
    return rows


def _parse(text: str, where: str) -> object:
    try:
        return parsed(text)
    except (ValueError, RecursionError) as error:
        rule = "A .jsonl file has a JSON object per line; a .json file is a list."
        raise InputError(f"{where} is not valid JSON: {error}. {rule}") from error


# By extension, for files with and without gzip: rows, or a single text.
READERS: dict[str, Callable[[Path], list[Any]]] = {
    **dict.fromkeys(PLAIN, _text),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": read_rows,
}
