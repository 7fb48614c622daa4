"""Perplexity against parameters, KV cache and milliseconds per token, of every method at uniform
ranks and of `fused` with `probed`: the picture of the README.

Perplexities, parameters and cache are those of the record; milliseconds are measured here and kept
beside them, so that a run goes on where it ended.
"""

from collections.abc import Callable, Iterator
from html import escape
from statistics import median
from typing import Any

import lrcore
from lrcore.evaluation import report
from lrcore.evaluation.report import COLOURS, Axis, Point

from .page import RATIOS, ROOT, note, recipe_of, subjects
from .quality import BUDGETS, keep, read_record

PICTURE = ROOT / "assets" / "pictures" / "pareto.svg"
SHOWN = "demo-llama"  # the model of the picture
TURNS = 9
HIGHEST = 1.8  # perplexity above which points are left out
PANEL, GAP, TOP, BOTTOM, LEGEND = 300, 66, 30, 46, 74  # pixels
AXES = {
    "parameters": "million parameters",
    "kv_bytes": "KV bytes per token",
    "milliseconds": "milliseconds per decoded token",
}
Cell = dict[str, Any]


def pareto(only: list[str]) -> None:
    """Measure what lacks milliseconds, and draw."""
    record = read_record()
    for subject in subjects(only or [SHOWN]):
        own = record[subject.title]
        measure(own, subject.recipe, lambda: keep(record))
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
        if "milliseconds" in cell:
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
        note(f"{key}: {share:.3f} of {dense:.3f} ms")
        save()


def points(own: dict[str, Any]) -> dict[str, list[Point]]:
    """The points of every panel, by the field of a cell."""
    panels: dict[str, list[Point]] = {name: [] for name in AXES}
    for _, method, policy, ratio, cell in chosen(own["cells"]):
        series = f"{method} probed" if policy == "probed" else method
        for name, into in panels.items():
            if name in cell and cell["perplexity"] <= HIGHEST:
                x = cell[name] / (1e6 if name == "parameters" else 1)
                into.append(Point(f"{series} {ratio:.0%}", series, x, cell["perplexity"]))
    return panels


def drawn(panels: dict[str, list[Point]]) -> str:
    """The picture, for light and dark pages."""
    series = list(dict.fromkeys(p.series for own in panels.values() for p in own))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(series)}
    square = set(series[len(COLOURS) :])
    width, height = len(panels) * (PANEL + GAP) + 14, TOP + PANEL + BOTTOM + LEGEND

    def mark(name: str, x: float, y: float, title: str = "") -> str:
        fill = f'fill="{colour[name]}" fill-opacity=".85"'
        if name in square:
            return (
                f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}>{title}</rect>'
            )
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill}>{title}</circle>'

    parts = []
    for i, (field, own) in enumerate(panels.items()):
        left = GAP + i * (PANEL + GAP)
        across = Axis([p.x for p in own], left, left + PANEL)
        up = Axis([p.y for p in own], TOP + PANEL, TOP, log=True)
        parts.append(_frame(across, up, left, AXES[field]))
        front = " ".join(f"{across(p.x):.1f},{up(p.y):.1f}" for p in report.pareto(own))
        parts.append(f'<polyline points="{front}" class="front"/>')
        for p in own:
            title = f"<title>{escape(f'{p.name}: {p.x:.4g}, perplexity {p.y:.3f}')}</title>"
            parts.append(mark(p.series, across(p.x), up(p.y), title))
    columns = 6
    for i, name in enumerate(series):
        x = GAP + i % columns * (width - GAP) / columns
        y = TOP + PANEL + BOTTOM + 12 + i // columns * 20
        parts.append(f'{mark(name, x, y)}<text x="{x + 10:.1f}" y="{y + 4:.1f}">{name}</text>')
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


def _frame(across: Axis, up: Axis, left: float, name: str) -> str:
    """Grid, ticks and names of a panel."""
    bottom, parts = TOP + PANEL, [f'<text x="{left}" y="{TOP - 12}">perplexity</text>']
    for value in up.ticks():
        y = up(value)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in across.ticks():
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{value:.4g}</text>')
    middle = left + PANEL / 2
    parts.append(f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle">{name}</text>')
    return "".join(parts)
