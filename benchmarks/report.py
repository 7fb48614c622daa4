"""Markdown tables and the sections of the pages in docs/benchmarks/."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

from prose import wrap

from .machine import ROOT
from .record import RECORDED, cells_of
from .stamps import stamp

PAGES = ROOT / "docs" / "benchmarks"


def log(text: str) -> None:
    """Print a line of progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def table(header: list[str], rows: list[list]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def with_error(cell: Mapping[str, Any] | None) -> str:
    """Return the perplexity of a cell ± the standard error of the difference from the dense model,
    paired by window; "–" for a missing cell.
    """
    if cell is None:
        return "–"
    return f"{cell['perplexity']:.3f} ± {cell['error']:.3f}"


def page_of(section: str) -> Path:
    """Return the page in docs/benchmarks/ that has the markers of a section."""
    for page in sorted(PAGES.glob("*.md")):
        if f"<!-- begin {section} -->" in page.read_text(encoding="utf-8"):
            return page
    raise SystemExit(f"no page in {PAGES} has a section '{section}'")


def write_section(name: str, text: str, document: Path | None = None) -> None:
    """Replace the text between the markers of a section, by default on its page in
    docs/benchmarks/, and state when and by which code it was measured.
    """
    document = document or page_of(name)
    page = document.read_text(encoding="utf-8")
    pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{document.name} has no section '{name}'")
    written = section_text(name, text)
    document.write_text(
        pattern.sub(lambda match: match[1] + written + match[2], page), encoding="utf-8"
    )


def section_text(name: str, text: str) -> str:
    """Return the lines of a section, which end with the line on its measurement if there is one."""
    line = measured_line(name, text)
    return wrap(f"{text}\n\n{line}" if line else text) + "\n"


def measured_line(section: str, text: str) -> str:
    """Return when and by which code a section was measured; "" for cells without a stamp."""
    part = RECORDED.get(section.split()[0])
    if part is None:
        return stamp(writer(section), text).line()
    cells = cells_of(section)
    samples = dict.fromkeys(cell.sample.line() for cell in cells if cell.sample)
    stamps = sorted({cell.stamp for cell in cells if cell.stamp}, key=astuple)
    if not stamps:
        return " ".join(samples)
    dates = " to ".join(dict.fromkeys([stamps[0].date, stamps[-1].date]))
    commits = ", ".join(dict.fromkeys(f"`{stamp.commit}`" for stamp in stamps))
    machines = "; ".join(dict.fromkeys(stamp.machine for stamp in stamps))
    unknown = sum(cell.stamp is None for cell in cells)
    earlier = f"; {unknown} of {len(cells)} cells earlier" if unknown else ""
    line = f"Cells measured {dates} at commit {commits}, {machines}{earlier}."
    return " ".join([line, *samples])


def sections() -> Iterator[tuple[Path, str, str]]:
    """Yield page, name and text of all sections of the documents that benchmarks write."""
    pattern = re.compile(r"<!-- begin (.+?) -->\n(.*?)<!-- end \1 -->", re.DOTALL)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name, text in pattern.findall(page.read_text(encoding="utf-8")):
            yield page, name, text


def writer(section: str) -> Path:
    """Return the file that writes a section, found by its calls of `write_section`."""
    return _writers().get(section.split()[0]) or _writers()[""]


@cache
def _writers() -> dict[str, Path]:
    """Return files by the first word of their sections; "" if only a variable names those."""
    writers: dict[str, Path] = {}
    for folder in ("benchmarks", "scripts"):
        for path in sorted((ROOT / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "write_section":
                    name = node.args[0]
                    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
                    is_text = isinstance(first, ast.Constant)
                    writers[first.value.split()[0] if is_text else ""] = path
    return writers
