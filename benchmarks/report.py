"""Markdown tables and the sections of the pages in docs/benchmarks/."""

import platform
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from prose import wrap

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "benchmarks"


def log(text: str) -> None:
    """Print a line of progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def table(header: list[str], rows: list[list]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def with_error(cell: Mapping[str, Any]) -> str:
    """Return the perplexity of a cell ± the standard error of the difference from the dense model,
    paired by window.
    """
    return f"{cell['perplexity']:.3f} ± {cell['error']:.3f}"


def page_of(section: str) -> Path:
    """Return the page in docs/benchmarks/ that has the markers of a section."""
    for page in sorted(PAGES.glob("*.md")):
        if f"<!-- begin {section} -->" in page.read_text(encoding="utf-8"):
            return page
    raise SystemExit(f"no page in {PAGES} has a section '{section}'")


def write_section(name: str, text: str, document: Path | None = None) -> None:
    """Replace the text between the markers of a section; by default on its page in
    docs/benchmarks/.
    """
    document = document or page_of(name)
    page = document.read_text(encoding="utf-8")
    pattern = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{document.name} has no section '{name}'")
    document.write_text(
        pattern.sub(lambda match: match[1] + wrap(text) + "\n" + match[2], page), encoding="utf-8"
    )


def machine() -> str:
    """Return the processor, the number of threads and the version of torch."""
    version = torch.__version__.partition("+")[0]
    return f"{processor()}, {torch.get_num_threads()} threads, torch {version}"


def processor() -> str:
    """Return the processor name on Linux, such as "AMD EPYC", or the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
