"""Self-contained HTML reports: tables and SVG figures, without scripts or requests to any host.

A plotting library would add 4 MB of code to each page; a point's values are the browser's tooltips.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

# Paul Tol's bright set: distinct to colour-blind readers, visible on white and on near-black.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933", "#bb6633")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 78, 170, 18, 52
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:.5rem 0 1.5rem;font-variant-numeric:tabular-nums}
td,th{padding:.2rem .7rem;border-bottom:1px solid #8884}
th{text-align:left}td.n,th.n{text-align:right}
.wide{overflow-x:auto}
svg{max-width:100%;height:auto}svg text{fill:currentColor;font-size:12px}
"""


@dataclass(frozen=True)
class Point:
    """A point of a figure. Points of one series share a colour; others than finite are left out."""

    name: str
    series: str
    x: float
    y: float


def page(title: str, *parts: str) -> str:
    """The whole document."""
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width">'
    )
    name = escape(title)
    body = f"<h1>{name}</h1>{''.join(parts)}"
    return f"{head}<title>{name}</title><style>{STYLE}</style>{body}</html>\n"


def section(title: str, *parts: str) -> str:
    """Parts under a heading."""
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """An HTML table of the rows' columns; numeric columns are aligned right."""
    if not rows:
        return "<p>None.</p>"
    columns = list(dict.fromkeys(name for row in rows for name in row))
    right = {name: any(_number(row.get(name)) for row in rows) for name in columns}

    def line(cells: Sequence[str], tag: str) -> str:
        entries = [
            f"<{tag}{' class=n' if right[name] else ''}>{escape(cell)}</{tag}>"
            for name, cell in zip(columns, cells, strict=True)
        ]
        return f"<tr>{''.join(entries)}</tr>"

    body = "".join(line([formatted(row.get(name)) for name in columns], "td") for row in rows)
    return f"<div class=wide><table>{line(columns, 'th')}{body}</table></div>"


def facts(values: Mapping[str, Any]) -> str:
    """Names and values, one per line."""
    return table([{"": name, " ": formatted(value)} for name, value in values.items()])


def formatted(value: Any) -> str:
    """A value as text: four decimals or scientific notation, with thousands separators."""
    if value is None:
        return "—"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "not finite"
        if abs(value) >= 1e5:
            return f"{value:,.0f}"
        return f"{value:.4f}" if abs(value) >= 1e-2 or value == 0 else f"{value:.3e}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {formatted(part)}" for name, part in value.items()) or "—"
    return ", ".join(map(formatted, value)) if isinstance(value, list | tuple) else str(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates (none has as small an x and a smaller y), in x order."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not front or point.y < front[-1].y:
            front.append(point)
    return front


def scatter(points: Sequence[Point], x_name: str, y_name: str, log_y: bool = False) -> str:
    """Points by series, with the Pareto front (small x, small y) as a line."""
    points = [
        p for p in points if math.isfinite(p.x) and math.isfinite(p.y) and (p.y > 0 or not log_y)
    ]
    if not points:
        return "<p>Nothing to draw: no finite value.</p>"
    across = Axis([p.x for p in points], LEFT, WIDTH - RIGHT)
    up = Axis([p.y for p in points], HEIGHT - BOTTOM, TOP, log_y)
    front = " ".join(f"{across(p.x):.1f},{up(p.y):.1f}" for p in pareto(points))
    series = list(dict.fromkeys(p.series for p in points))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(series)}
    circles = "".join(
        f'<circle cx="{across(p.x):.1f}" cy="{up(p.y):.1f}" r="5" fill="{colour[p.series]}" '
        'fill-opacity=".85"><title>'
        + escape(f"{p.name}: {x_name} {formatted(p.x)}, {y_name} {formatted(p.y)}")
        + "</title></circle>"
        for p in points
    )
    keys = "".join(
        f'<circle cx="{WIDTH - RIGHT + 22}" cy="{TOP + 10 + 20 * i}" r="5" fill="{colour[name]}"/>'
        f'<text x="{WIDTH - RIGHT + 34}" y="{TOP + 14 + 20 * i}">{escape(name)}</text>'
        for i, name in enumerate(series)
    )
    line = (
        f'<polyline points="{front}" fill="none" stroke="currentColor" stroke-opacity=".5" '
        'stroke-dasharray="5 4"/>'
    )
    label = f"{y_name} against {x_name}; the dashed line joins the points of the Pareto front"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(label)}">'
        f"{_grid(across, up, x_name, y_name)}{line}{circles}{keys}</svg>"
    )


class Axis:
    """Values to pixels, linear or logarithmic, with a margin of 5 % at both ends."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, log: bool = False
    ) -> None:
        self._log = log
        low, high = (self._scaled(value) for value in (min(values), max(values)))
        margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        self._low, self._span = low - margin, high - low + 2 * margin
        self._begin, self._end = begin, end

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value

    def __call__(self, value: float) -> float:
        return self._begin + (self._scaled(value) - self._low) / self._span * (
            self._end - self._begin
        )

    def ticks(self) -> list[float]:
        """About five round values; on a logarithmic axis evenly spaced ones."""
        if self._log:
            return [
                float(f"{math.exp(self._low + self._span * (i + 0.5) / 5):.3g}") for i in range(5)
            ]
        step = 10 ** math.floor(math.log10(self._span / 4))
        step *= next(m for m in (1, 2, 5, 10) if self._span / (step * m) <= 6)
        first = math.ceil(self._low / step)
        return [i * step for i in range(first, math.floor((self._low + self._span) / step) + 1)]


def _grid(across: Axis, up: Axis, x_name: str, y_name: str) -> str:
    bottom, right, parts = HEIGHT - BOTTOM, WIDTH - RIGHT, []
    for value in up.ticks():
        y = up(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            'stroke-opacity=".15"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in across.ticks():
        x = across(value)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="currentColor" '
            'stroke-opacity=".15"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:.4g}</text>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" '
        f'text-anchor="middle">{escape(x_name)}</text>'
    )
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 '
        f'{middle})">{escape(y_name)}</text>'
    )
    return "".join(parts)
