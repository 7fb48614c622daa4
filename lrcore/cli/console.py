"""What the command line says: one JSON object or a small table on stdout; progress and errors,
one line each, on stderr.

A stream that nobody reads, or that is closed, ends no work.
"""

import io
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..as_json import json_text
from ..errors import as_text

Rows = Sequence[Mapping[Any, Any]]


class ProgressLine:
    """A progress callback: one line that renews itself on a terminal, one line per stage
    elsewhere.
    """

    def __init__(self) -> None:
        self._stage, self._open = "", False

    def begin(self) -> None:
        """Forget the last stage: a process may run one command after another."""
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            _to_stderr(f"\r\x1b[K{stage} {done}/{total}")
            self._open = True
        elif stage != self._stage:
            _to_stderr(f"{stage} ({total})\n")
        self._stage = stage

    def waits_for(self, stage: str) -> None:
        """Say on a terminal what takes seconds before anything can be counted, such as imports."""
        if sys.stderr.isatty():
            self(stage, 0, 1)

    def clear(self) -> None:
        """Give the line back before something else is said."""
        if self._open:
            _to_stderr("\r\x1b[K")
            self._open = False


progress = ProgressLine()


def show(as_json: bool, values: Mapping[str, Any], name: str = "", rows: Rows = ()) -> None:
    """Values, and under `name` a table of rows: one JSON object, or lines for a person."""
    progress.clear()
    if as_json:
        print_json({**values, name: rows} if name else values)
        return
    print_table(rows)
    if rows:
        print()
    print_values(
        {key: value for key, value in values.items() if key != "recipe"}
    )  # a person has just typed it


def say(message: str) -> None:
    """One line on stderr, whatever line breaks the message has, or bytes that are no text."""
    _to_stderr(as_text(" ".join(message.split())) + "\n")


def _to_stderr(text: str) -> None:
    with suppress(OSError):  # nobody reads it, or its disk is full
        print(text, end="", file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Give a process whose streams are closed ones that take anything, and let stdout have bytes
    for what its encoding lacks, such as names of files that are no UTF-8.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the next file would have the number, and what libraries print in it
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = (
        open(os.devnull, "w") if one is None else one  # noqa: SIM115  # until the process ends
        for one in (sys.stdout, sys.stderr)
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def leave_streams() -> None:
    """Forget what is left in a stream that cannot be written: Python would try again as it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on stdout. NaN and infinity, which JSON lacks, become null."""
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
    """`name  value` lines; nested mappings are shown under dotted names."""
    flat = dict(_flatten(values))
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
    """Rows under their column names; numbers to the right, folders and files by their names."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    short = short_names({text for row in cells for text in row})
    cells = [[short.get(text, text) for text in row] for row in cells]
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    numeric = [all(isinstance(row.get(column), int | float) for row in rows) for column in columns]
    for line in (columns, *cells):
        print(
            "  ".join(
                text.rjust(w) if right else text.ljust(w)
                for text, w, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
        )


def short_names(texts: Collection[str]) -> dict[str, str]:
    """For those texts that are paths of this machine, as many of their last parts as tell them
    apart from each other and from the other texts.
    """
    paths = {text: Path(text).parts for text in texts if Path(text).is_absolute() and len(text) > 1}
    for count in range(1, max(map(len, paths.values()), default=0)):
        short = {text: str(Path(*parts[-count:])) for text, parts in paths.items()}
        if len({*short.values()}) == len(short) and not {*short.values()} & set(texts):
            return short
    return {}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str) and value and not value.strip():
        return repr(value)  # blanks and line breaks
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
