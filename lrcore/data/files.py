"""Local text files: one reader per extension, chosen by the name."""

import json
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lrcore.data.parquet import COPIES, read_rows
from lrcore.data.questions import has_questions
from lrcore.data.reading import reading
from lrcore.data.rows import documents_of, parsed
from lrcore.errors import InputError, shown
from lrcore.files import write_text
from lrcore.memory import free_memory, raise_unless_free
from lrcore.places import place_of

from ..as_json import json_text

# Bytes that a byte of a file takes on the way to tokens, at the least: a character, of four bytes
# at most, takes `tokens.PER_CHARACTER`. What is read in vain would be a gigabyte, and seconds.
PER_BYTE = 32
LONGEST_ROW = 2**27  # characters of a question, which may hold an image


def looks_like_path(data: str) -> bool:
    """Whether ``data`` names a local file: one that exists, a known extension, or a path's start.

    Folders are data sets, not files.
    """
    path = place_of(data)
    try:
        if path.is_file():
            return True
    except OSError:  # a name too long for the file system
        return False
    return path.suffix.lower() in READERS or (
        data.startswith(("/", "./", "../", "~")) and not path.is_dir()
    )


def read(path: Path) -> list[str]:
    """The documents of a local file. Raises InputError where it is missing, empty or unreadable."""
    check_there(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"Cannot read '{path}': its extension is '{path.suffix}'. Known: "
            f"{', '.join(READERS)}. Convert or rename it."
        )
    with reading(path):
        if path.stat().st_size == 0:
            raise InputError(f"'{path}' is empty (0 bytes). Choose a file with text.")
        packed = reader is _parquet  # which counts its texts itself
        size = (COPIES if packed else PER_BYTE) * path.stat().st_size
        remedy = "Take a part of the file, or free memory."
        raise_unless_free(size, f"The texts of '{path.name}'", remedy, free_memory())
        return reader(path)


def check_there(path: Path) -> None:
    """Raise InputError where there is no such file, which names one that is called alike."""
    if not path.exists():
        raise InputError(
            f"No file '{path}'.{_neighbour(path)} Relative paths start at {Path.cwd()}."
        )


def holds_questions(path: Path) -> bool:
    """Whether a file is a .jsonl whose first row is a multiple-choice question."""
    if path.suffix.lower() != ".jsonl" or not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = iter(lambda: file.readline(LONGEST_ROW), "")
            first = next((line for line in lines if line.strip()), "")
        return has_questions(json.loads(first))
    except (OSError, ValueError, RecursionError):  # who reads the file says what is wrong
        return False


def write_texts(texts: Iterable[Any], path: str | Path) -> str:
    """Documents in memory as a .jsonl file, and its name: what `data` takes everywhere.

    texts: strings, or rows with fields as `datasets.Dataset` has them, of which the same fields are
    taken as from a file. A file that is there is replaced.
    Raises InputError where there is no text, for splits by name (`datasets.DatasetDict`), and where
    the name does not end in .jsonl.
    """
    if isinstance(texts, Mapping):
        named = ", ".join(map(str, texts))
        raise InputError(f"texts is a mapping ({shown(named)}). Give one of its values.")
    if Path(path).suffix.lower() != ".jsonl":
        raise InputError(f"'{path}' is no name for texts. Give one that ends in .jsonl.")
    rows = [texts] if isinstance(texts, str) else list(texts)
    lines = [json_text({"text": one}) for one in documents_of(rows, "texts")]
    write_text(path, "\n".join(lines) + "\n")
    return str(path)


def _neighbour(path: Path) -> str:
    if not path.parent.is_dir():
        return f" Its folder '{path.parent}' does not exist either."
    near = get_close_matches(
        path.name, [entry.name for entry in path.parent.iterdir()], n=1, cutoff=0.6
    )
    return f" Did you mean '{path.with_name(near[0])}'?" if near else ""


def _text(path: Path) -> list[str]:
    return [path.read_text(encoding="utf-8-sig")]


def _json_lines(path: Path) -> list[str]:
    rows = []
    # Not splitlines(): JSON strings may hold U+2028 and other characters it takes for line ends.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if line.strip():
            rows.append(_parse(line, f"line {number} of '{path}'"))
    return documents_of(rows, f"'{path}'")


def _json(path: Path) -> list[str]:
    rows = _parse(path.read_text(encoding="utf-8-sig"), f"'{path}'")
    if not isinstance(rows, list):
        raise InputError(
            f"'{path}' holds one JSON {type(rows).__name__}, not a list of rows. Wrap the rows in "
            "[...], or use .jsonl."
        )
    return documents_of(rows, f"'{path}'")


def _parse(text: str, where: str) -> object:
    try:
        return parsed(text)
    except (ValueError, RecursionError) as error:
        rule = "In .jsonl every line is one JSON object; in .json the file is one list."
        raise InputError(f"{where} is not valid JSON: {error}. {rule}") from error


def _parquet(path: Path) -> list[str]:
    return documents_of(read_rows(path), f"'{path}'")


READERS: dict[str, Callable[[Path], list[str]]] = {
    ".txt": _text,
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
}
