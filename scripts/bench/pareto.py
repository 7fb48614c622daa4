"""Perplexity against parameters, megabytes, KV cache and milliseconds per token, of every method at
uniform ranks, of `fused` with `probed`, and of the steps that take no ranks: the picture of the
README.

Perplexities, parameters and cache of methods are those of the record; the rest is measured here and
kept beside them, so that a run goes on where it ended.
"""

from collections.abc import Callable, Iterator
from html import escape
from statistics import median
from typing import Any

import lrcore
from lrcore.evaluation import report
from lrcore.evaluation.report import COLOURS, Axis, Point

from .other_steps import measured_by_steps
from .page import RATIOS, ROOT, note, recipe_of, subjects
from .quality import BUDGETS, keep, read_record

PICTURE = ROOT / "assets" / "pictures" / "pareto.svg"
SHOWN = "demo-llama"  # the model of the picture
TURNS = 9
HIGHEST = 1.8  # perplexity above which points are left out
PANEL, GAP, TOP, BOTTOM = 400, 66, 30, 46  # pixels
ACROSS, COLUMNS, LINE = 2, 6, 20  # panels in a row; columns of the legend, and its line in pixels
AXES = {
    "parameters": "million parameters",
    "megabytes": "MB of weights as stored",
    "kv_bytes": "KV bytes per token",
    "milliseconds": "milliseconds per decoded token",
}
LOG = ("megabytes", "milliseconds")  # several times apart
Cell = dict[str, Any]


def pareto(only: list[str]) -> None:
    """Measure what lacks milliseconds, and draw."""
    record = read_record()
    for subject in subjects(only or [SHOWN]):
        own = record[subject.title]
        measure(own, subject.recipe, lambda: keep(record))
        steps, dense = own.setdefault("steps", {}), own["dense_milliseconds"]
        measured_by_steps(subject, steps, dense, lambda: keep(record))
    if not only or SHOWN in only:
        PICTURE.write_text(drawn(points(record[SHOWN])) + "\n", encoding="utf-8")


def chosen(cells: dict[str, Cell]) -> Iterator[tuple[str, str, str, float, Cell]]:
    """Key, method, policy, ratio and cell of what the picture shows."""
    for method in (row["name"] for row in lrcore.methods()):
        for policy in ("uniform", "probed") if method == "fused" else ("uniform",):
            for ratio in RATIOS:
                for budget in BUDGETS:
                    key = f"{method} {policy} {budget} {ratio}"
                    if key in cells:
                        yield key, method, policy, ratio, cells[key]


def measure(own: dict[str, Any], recipe: lrcore.Recipe, save: Callable[[], None]) -> None:
    """Milliseconds per decoded token: the median ratio to the dense model over TURNS turns, which a
    busy machine slows alike, times `dense_milliseconds`, the dense model's in the first of them.
    """
    model, factors = lrcore.load(recipe.model), None
    for key, method, policy, ratio, cell in chosen(own["cells"]):
        if "milliseconds" in cell and "megabytes" in cell:
            continue
        single = recipe_of(recipe, method, policy=policy, ratio=ratio)
        if factors is None or factors.method != method:
            factors = lrcore.prepare(model, single)
        factors = lrcore.measure_evidence(model, factors, single)
        small = lrcore.compress(model, single, factors)
        pairs = [lrcore.measure_speed([model, small], rounds=1) for _ in range(TURNS)]
        share = median(dense.decode / ours.decode for dense, ours in pairs)
        dense = 1e3 / median(dense.decode for dense, _ in pairs)
        first = own.setdefault("dense_milliseconds", round(dense, 3))
        cell["milliseconds"] = round(first * share, 3)
        cell["megabytes"] = round(small.size.megabytes, 3)
        note(f"{key}: {share:.3f} of {dense:.3f} ms")
        save()


def points(own: dict[str, Any]) -> dict[str, list[Point]]:
    """The points of every panel, by the field of a cell."""
    panels: dict[str, list[Point]] = {name: [] for name in AXES}
    for name, series, cell in shown(own):
        for field, into in panels.items():
            if field in cell and cell["perplexity"] <= HIGHEST:
                x = cell[field] / (1e6 if field == "parameters" else 1)
                into.append(Point(name, series, x, cell["perplexity"]))
    return panels


def shown(own: dict[str, Any]) -> Iterator[tuple[str, str, Cell]]:
    """Name, series and cell of every model."""
    for _, method, policy, ratio, cell in chosen(own["cells"]):
        series = f"{method} probed" if policy == "probed" else method
        yield f"{series} {ratio:.0%}", series, cell
    for name, cell in own.get("steps", {}).items():
        yield name, cell["series"], cell


def drawn(panels: dict[str, list[Point]]) -> str:
    """The picture, for light and dark pages."""
    series = list(dict.fromkeys(p.series for own in panels.values() for p in own))
    number = {name: i for i, name in enumerate(series)}
    bottom = -(-len(panels) // ACROSS) * (TOP + PANEL + BOTTOM) + 12
    width = ACROSS * (PANEL + GAP) + 14
    height = bottom + -(-len(series) // COLUMNS) * LINE
    parts = []
    for i, (field, own) in enumerate(panels.items()):
        left, top = GAP + i % ACROSS * (PANEL + GAP), TOP + i // ACROSS * (TOP + PANEL + BOTTOM)
        parts.append(_panel(own, number, left, top, field))
    for name, i in number.items():
        x, y = 20 + i % COLUMNS * (width - 20) / COLUMNS, bottom + i // COLUMNS * LINE
        parts.append(f'{_mark(i, x, y)}<text x="{x + 10:.1f}" y="{y + 4:.1f}">{name}</text>')
    style = (
        "svg{background:#fff;color:#222}text{fill:currentColor;font:12px system-ui,sans-serif}"
        ".grid{stroke:currentColor;stroke-opacity:.15}"
        ".front{fill:none;stroke:currentColor;stroke-opacity:.5;stroke-dasharray:5 4}"
        "@media(prefers-color-scheme:dark){svg{background:#0d1117;color:#e6edf3}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{style}</style>{"".join(parts)}</svg>'
    )


def _panel(own: list[Point], number: dict[str, int], left: float, top: float, field: str) -> str:
    """One panel: its axes, the dashed line of what nothing beats, and the points."""
    across = Axis([p.x for p in own], left, left + PANEL, log=field in LOG)
    up = Axis([p.y for p in own], top + PANEL, top, log=True)
    front = " ".join(f"{across(p.x):.1f},{up(p.y):.1f}" for p in report.pareto(own))
    parts = [
        _frame(across, up, left, top, AXES[field]),
        f'<polyline points="{front}" class="front"/>',
    ]
    for p in own:
        title = f"<title>{escape(f'{p.name}: {p.x:.4g}, perplexity {p.y:.3f}')}</title>"
        parts.append(_mark(number[p.series], across(p.x), up(p.y), title))
    return "".join(parts)


def _mark(number: int, x: float, y: float, title: str = "") -> str:
    """The mark of the series of this number: circles in every colour, then squares, then
    triangles.
    """
    fill = f'fill="{COLOURS[number % len(COLOURS)]}" fill-opacity=".85"'
    shape = number // len(COLOURS)
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill}>{title}</circle>'
    if shape == 1:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}>{title}</rect>'
    points = f"{x - 5:.1f},{y + 4:.1f} {x + 5:.1f},{y + 4:.1f} {x:.1f},{y - 5:.1f}"
    return f'<polygon points="{points}" {fill}>{title}</polygon>'


def _frame(across: Axis, up: Axis, left: float, top: float, name: str) -> str:
    """Grid, ticks and names of a panel."""
    bottom, parts = top + PANEL, [f'<text x="{left}" y="{top - 12}">perplexity</text>']
    for value in up.ticks():
        y = up(value)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in across.ticks():
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{value:.4g}</text>')
    middle = left + PANEL / 2
    parts.append(f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle">{name}</text>')
    return "".join(parts)
