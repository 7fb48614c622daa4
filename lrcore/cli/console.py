"""Output of the command line: JSON or tables on stdout, progress and errors on stderr.

A closed stream does not stop a command.
"""

import io
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..system.as_json import json_text
from ..system.errors import as_text

Rows = Sequence[Mapping[Any, Any]]


class ProgressLine:
    """A progress callback: a line that is updated on a terminal, else a line per stage."""

    def __init__(self) -> None:
        self._stage, self._open = "", False

    def begin(self) -> None:
        """Forget the last stage, before the next command of this process."""
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            _to_stderr(f"\r\x1b[K{stage} {done}/{total}")
            self._open = True
        elif stage != self._stage:
            _to_stderr(f"{stage} ({total})\n")
        self._stage = stage

    def waits_for(self, stage: str) -> None:
        """Show a stage without a count on a terminal, such as imports."""
        if sys.stderr.isatty():
            self(stage, 0, 1)

    def clear(self) -> None:
        """Clear the line before other output."""
        if self._open:
            _to_stderr("\r\x1b[K")
            self._open = False


progress = ProgressLine()


def show(as_json: bool, values: Mapping[str, Any], name: str = "", rows: Rows = ()) -> None:
    """Print values, and rows under `name`, as a JSON object or as a table and lines."""
    progress.clear()
    if as_json:
        print_json({**values, name: rows} if name else values)
        return
    print_table(rows)
    if rows:
        print()
    # without the recipe, which the user has just entered
    print_values({key: value for key, value in values.items() if key != "recipe"})


def say(message: str) -> None:
    """Print a message as a single line on stderr."""
    _to_stderr(as_text(" ".join(message.split())) + "\n")


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # closed, or the disk is full
        print(text, end="", file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Replace closed streams by null devices, and let stdout escape characters that the encoding
    lacks, such as in file names that are not UTF-8.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # otherwise libraries would print into the next opened file
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if stream is None else stream  # noqa: SIM115  # open until the exit
        for stream in (sys.stdout, sys.stderr)
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def leave_streams() -> None:
    """Discard buffered output of broken streams, which Python would write again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(values: Mapping[str, Any]) -> None:
    """Print a JSON object on stdout, with null for NaN and infinity."""
    print(json_text(_plain(values), indent=2), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if hasattr(value, "item"):  # numbers of numpy, pandas and torch
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def print_values(values: Mapping[str, Any]) -> None:
    """Print lines `name  value`, with dotted names for nested mappings; None is left out."""
    flat = {name: value for name, value in _flatten(values) if value is not None}
    width = max((len(name) for name in flat), default=0)
    for name, value in flat.items():
        print(f"{name:<{width}}  {_cell(value)}")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for name, value in values.items():
        pairs += (
            _flatten(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else [(f"{prefix}{name}", value)]
        )
    return pairs


def print_table(rows: Rows) -> None:
    """Print a table with right-aligned numbers, shortened paths and a dash for None; line breaks in
    a cell are printed as `\\n`, so that a row is a line.
    """
    if not rows:
        return
    columns = list(rows[0])
    cells = [[_cell(row.get(column)).replace("\n", "\\n") for column in columns] for row in rows]
    names = short_names({text for row in cells for text in row})
    cells = [[names.get(text, text) for text in row] for row in cells]
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    numeric = [
        all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns
    ]
    for line in (columns, *cells):
        print(
            "  ".join(
                text.rjust(width) if is_number else text.ljust(width)
                for text, width, is_number in zip(line, widths, numeric, strict=True)
            ).rstrip()
        )


def short_names(texts: Collection[str]) -> dict[str, str]:
    """Return {path: last parts} for the texts that are absolute paths, with the fewest parts that
    are unique among all texts.
    """
    paths = {text: Path(text).parts for text in texts if Path(text).is_absolute() and len(text) > 1}
    for count in range(1, max(map(len, paths.values()), default=0)):
        names = {text: str(Path(*parts[-count:])) for text, parts in paths.items()}
        if len({*names.values()}) == len(names) and not {*names.values()} & set(texts):
            return names
    return {}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if value is None:
        return "–"
    if isinstance(value, str) and value and not value.strip():
        return repr(value)  # blanks and line breaks
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
