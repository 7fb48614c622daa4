"""Uniform formats of numbers on all tabs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.base import numbers

WORKBENCH = Path(__file__).resolve().parents[2] / "workbench"
# Formats that only numbers.py may use: thousands, signs, percentages, perplexities.
STRAY = re.compile(r"^[+]?,|^\+\.\d%|^\.[34]f$|^\.[45]g$")
IN_TEMPLATE = re.compile(r"\{\w*:([^{}]*)\}")
# Figures of these tabs have losses in nats and norms, with different digits.
EXCLUDED_TABS = ("compare", "runs", "compress")


def formats(path: Path) -> Iterator[str]:
    """Yield the formats of numbers in f-strings and templates of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            yield from (literal.value for literal in ast.walk(node.format_spec) if is_text(literal))
        elif is_text(node):
            yield from IN_TEMPLATE.findall(node.value)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def files() -> list[Path]:
    paths = [
        path
        for path in WORKBENCH.rglob("*.py")
        if path.name not in ("numbers.py", "export.py", "job_markup.py")
        and not (path.parent.parent.name == "tabs" and path.parent.name in EXCLUDED_TABS)
        and path.name != "comparison.py"
    ]
    assert len(paths) > 90
    return paths


def test_only_numbers_py_formats_counts_percentages_and_perplexities():
    stray = {
        path.name: [number_format for number_format in formats(path) if STRAY.match(number_format)]
        for path in files()
    }
    assert {name: matches for name, matches in stray.items() if matches} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (numbers.count(1234567), "1\u202f234\u202f567"),
        (numbers.signed(-4096), "−4\u202f096"),
        (numbers.signed(3), "+3"),
        (numbers.perplexity(1.5), "1.5000"),
        (numbers.percent(0.1234), "12.3%"),
        (numbers.percent(-0.5, 0), "−50%"),
        (numbers.percent(float("nan")), "–"),
        (numbers.relative_change(-0.0123, 2), "−1.23%"),
        (numbers.relative_change(240.2581), "+24\u202f026%"),
        (numbers.megabytes(17.12), "17.1 MB"),
        (numbers.megabytes(2500), "2.5 GB"),
        (numbers.with_prefix(9.83e6), "9.83 M"),
        (numbers.milliseconds(0.0123), "12.300 ms"),
        (numbers.nats(-0.125), "−0.12"),
        (numbers.speed(12.34), "12 tokens/s"),
    ],
)
def test_numbers_are_formatted(text, expected):
    assert text == expected


def test_nouns_are_plural_unless_the_count_is_one():
    assert [numbers.plural(count, "run") for count in (0, 1, 1200)] == [
        "0 runs",
        "1 run",
        "1\u202f200 runs",
    ]
