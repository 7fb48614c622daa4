"""Self-contained HTML reports with tables and SVG figures, without scripts or requests.

A plotting library would add 4 MB of code to each page. Values of points are SVG tooltips.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).with_name("report.html")
# Paul Tol's bright set: suitable for color-blind readers, visible on white and near-black.
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#bb6633")


@dataclass(frozen=True)
class Table:
    """A titled table. head: names of the columns, or none; numeric: columns aligned right."""

    title: str
    rows: Sequence[Sequence[Any]]
    head: Sequence[str] = ()
    numeric: Sequence[bool] = ()


@dataclass(frozen=True)
class Answers:
    """Answers of several models to a prompt. answers: names and texts, the reference first."""

    title: str
    prompt: str
    answers: Sequence[tuple[str, str]]

    @property
    def columns(self) -> list[tuple[str, str, str]]:
        """The name of each model, and its answer in two parts: up to the first word that differs
        from the reference, and the rest.
        """
        reference = self.answers[0][1] if self.answers else ""
        return [(name, *split_at_difference(text, reference)) for name, text in self.answers]


@dataclass(frozen=True)
class Point:
    """A point of a figure. Points of a series share a color. Only finite points are drawn."""

    name: str
    series: str
    x: float
    y: float


@dataclass(frozen=True)
class Figure:
    """A titled scatter plot by series; a line joins the Pareto front. x, y: maps to pixels."""

    title: str
    points: Sequence[Point]
    x_name: str
    y_name: str
    x: "Axis"
    y: "Axis"
    front: Sequence[Point]
    colors: Mapping[str, str]


Part = Table | Figure | Answers


def page(title: str, *parts: Part, introduction: str = "") -> str:
    """Return an HTML document. introduction: HTML above the parts; all other text is escaped."""
    from jinja2 import Environment  # takes 0.2 s, and only reports need it

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"text": format_value}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(title=title, parts=parts, introduction=introduction)


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of rows by column name; numeric columns are aligned right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [any(_is_number(row.get(name)) for row in rows) for name in columns]
    cells = [[format_value(row.get(name)) for name in columns] for row in rows]
    return Table(title, cells, columns, numeric)


def fields_table(title: str, values: Mapping[str, Any]) -> Table:
    """Return a table of names and values."""
    return Table(title, [(name, format_value(value)) for name, value in values.items()])


def answers(rows: Sequence[Mapping[str, Any]]) -> list[Answers]:
    """Return the rows of `answer_prompts`, side by side for each prompt."""
    return [
        Answers(
            "Answers", prompt, [(row["model"], row["answer"] or row["error"]) for row in of_prompt]
        )
        for prompt, of_prompt in groupby(rows, lambda row: row["prompt"])
    ]


def split_at_difference(text: str, reference: str) -> tuple[str, str]:
    """Return a text up to the first word that differs from a reference, and the rest."""
    words, expected = (re.findall(r"\s*\S+|\s+", passage) for passage in (text, reference))
    pairs = enumerate(zip(words, expected, strict=False))
    count = next((i for i, (a, b) in pairs if a != b), min(len(words), len(expected)))
    return "".join(words[:count]), "".join(words[count:])


def format_value(value: Any) -> str:
    """Format a value: four decimals or scientific notation, with thousands separators.

    Floats without a fraction from 1000 on have no decimals, and a blank text, such as a line break,
    is quoted.
    """
    if value is None:
        return "—"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "not finite"
        if abs(value) >= 1e5 or (abs(value) >= 1e3 and value.is_integer()):
            return f"{value:,.0f}"
        return f"{value:.4f}" if abs(value) >= 1e-2 or value == 0 else f"{value:.3e}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str) and value and not value.strip():
        return repr(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(part)}" for name, part in value.items()) or "—"
    return ", ".join(map(format_value, value)) if isinstance(value, list | tuple) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pareto(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front for small x and small y, sorted by x."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not front or point.y < front[-1].y:
            front.append(point)
    return front


def scatter(
    title: str, points: Sequence[Point], x_name: str, y_name: str, log_y: bool = False
) -> Figure:
    """Return a scatter plot with the Pareto front for small x and small y."""
    points = [
        p for p in points if math.isfinite(p.x) and math.isfinite(p.y) and (p.y > 0 or not log_y)
    ]
    x = Axis([p.x for p in points] or [1.0], 78, 590)
    y = Axis([p.y for p in points] or [1.0], 328, 18, log_y)
    colors = dict(zip(dict.fromkeys(p.series for p in points), cycle(COLORS), strict=False))
    return Figure(title, points, x_name, y_name, x, y, pareto(points), colors)


def tick_label(value: float, digits: int = 4) -> str:
    """Return a value of an axis as text, such as "2.5", "280 k" or "12 M" for millions.

    Thousands have a prefix from 10 k on; smaller values fit in four digits.
    """
    for prefix, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if abs(value) >= least:
            return f"{value / size:.{digits}g} {prefix}"
    return f"{value:.{digits}g}"


class Axis:
    """Linear or logarithmic map from values to tenths of pixels, with margins of 5 %."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool = False
    ) -> None:
        self._log = log
        low, high = (self._scaled(value) for value in (min(values), max(values)))
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        self._low, self._span = low - margin, high - low + 2 * margin
        self.start, self.end = start, end

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value

    def __call__(self, value: float) -> float:
        share = (self._scaled(value) - self._low) / self._span
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return about five round values, or evenly spaced values on a logarithmic axis."""
        if self._log:
            marks = [math.exp(self._low + self._span * (i + 0.5) / 5) for i in range(5)]
            digits = _digits(lambda count: [f"{mark:.{count}g}" for mark in marks], 3)
            return [float(f"{mark:.{digits}g}") for mark in marks]
        step = 10 ** math.floor(math.log10(self._span / 4))
        step *= next(m for m in (1, 2, 5, 10) if self._span / (step * m) <= 6)
        first = math.ceil(self._low / step)
        return [i * step for i in range(first, math.floor((self._low + self._span) / step) + 1)]

    def labeled_ticks(self) -> list[tuple[float, str]]:
        """Return the ticks with labels that differ, also on an axis with a narrow range."""
        marks = self.ticks()
        digits = _digits(lambda count: [tick_label(mark, count) for mark in marks], 4)
        return [(mark, tick_label(mark, digits)) for mark in marks]


def _digits(labels: Callable[[int], Sequence[str]], least: int) -> int:
    """Return the fewest digits, at least `least`, with which the labels differ; at most 15."""
    return next((n for n in range(least, 15) if len({*labels(n)}) == len(labels(n))), 15)
