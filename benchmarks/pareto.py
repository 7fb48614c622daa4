"""The picture of perplexity against parameters, megabytes, KV cache and milliseconds per token.

Its points are all methods with uniform ranks, `fused` with `probed`, and the steps without ranks:
dropped layers, a sliced residual stream, shared bases, quantized or sparse weights, and LoRA after
a compression. Perplexity, parameters and cache of the methods come from the record; the remaining
figures are measured here and recorded, so that an interrupted run can continue.
"""

from collections.abc import Callable, Iterator
from html import escape
from statistics import median
from typing import Any

import lrcore
from lrcore.evaluation import report
from lrcore.evaluation.report import COLORS, Axis, Point
from lrcore.runs.sweep_rows import SweepRow

from .record import BUDGETS, read_record, write_record
from .report import ROOT, log
from .subjects import RATIOS, Subject, recipe_of, subjects

PICTURE = ROOT / "assets" / "pictures" / "pareto.svg"
FOLDER = ROOT / "build" / "pareto"
PICTURED_MODEL = "demo-llama"
TURNS = 9
HIGHEST = 1.8  # points with a higher perplexity are omitted
PANEL, GAP, TOP, BOTTOM = 400, 66, 30, 46  # pixels
ACROSS, COLUMNS, LINE = 2, 6, 20  # panels per row; columns and line height (pixels) of the legend
AXES = {
    "parameters": "million parameters",
    "megabytes": "MB of weights as stored",
    "kv_bytes": "KV bytes per token",
    "milliseconds": "milliseconds per decoded token",
}
LOGARITHMIC = ("megabytes", "milliseconds")  # spread over a wide range
Cell = dict[str, Any]
Entry = dict[str, Any]
_LORA = {
    "train": "lora",
    "lora_rank": 8,
    "beta": 0,
    "samples": 256,
    "seq_len": 128,
    "steps": 60,
    "test_samples": 0,
}
_RATIOS = {"ratio": list(RATIOS)}
# Sweep rows of the steps, by series
STEPS: dict[str, Any] = {
    "prune-layers": {"prune-layers": {"layers": [1, 2, 3], "criterion": "loss"}},
    "slice": {"slice": _RATIOS},
    "share": {"share": _RATIOS},
    "quantize": {"quantize": {"bits": [8, 4, 3, 2], "quantizer": "hqq"}},
    "sparsify 2:4": {"sparsify": {"criterion": ["sparsegpt", "wanda", "pruner_zero"]}},
    "a3 → lora": [{"compress": {"method": "a3", **_RATIOS}}, {"heal": _LORA}],
    "svd_llm → lora": [{"compress": {"method": "svd_llm", **_RATIOS}}, {"heal": _LORA}],
    "fused → quantize 4": [
        {"compress": {"method": "fused", "policy": "probed", **_RATIOS}},
        {"quantize": {"bits": 4, "quantizer": "hqq"}},
    ],
}


def pareto(models: list[str]) -> None:
    """Measure the cells without milliseconds and draw the picture."""
    record = read_record()
    for subject in subjects(models or [PICTURED_MODEL]):
        entry = record[subject.title]
        measure_methods(entry, subject.recipe, lambda: write_record(record))
        steps, dense = entry.setdefault("steps", {}), entry["dense_milliseconds"]
        measure_steps(subject, steps, dense, lambda: write_record(record))
    if not models or PICTURED_MODEL in models:
        PICTURE.write_text(draw(points(record[PICTURED_MODEL])) + "\n", encoding="utf-8")


# ---- measuring


def pictured_cells(cells: dict[str, Cell]) -> Iterator[tuple[str, str, str, float, Cell]]:
    """Yield key, method, policy, ratio and cell of the methods in the picture."""
    for method in (row["name"] for row in lrcore.list_methods()):
        for policy in ("uniform", "probed") if method == "fused" else ("uniform",):
            for ratio in RATIOS:
                for budget in BUDGETS:
                    key = f"{method} {policy} {budget} {ratio}"
                    if key in cells:
                        yield key, method, policy, ratio, cells[key]


def measure_methods(entry: Entry, recipe: lrcore.Recipe, save: Callable[[], None]) -> None:
    """Measure milliseconds per decoded token: the median ratio to the dense model over TURNS turns,
    which a busy machine does not change, times the first time of the dense model
    (`dense_milliseconds`).
    """
    model, factors = lrcore.load(recipe.model), None
    for key, method, policy, ratio, cell in pictured_cells(entry["cells"]):
        if "milliseconds" in cell and "megabytes" in cell:
            continue
        cell_recipe = recipe_of(recipe, method, policy=policy, ratio=ratio)
        if factors is None or factors.method != method:
            factors = lrcore.prepare(model, cell_recipe)
        factors = lrcore.measure_evidence(model, factors, cell_recipe)
        compressed = lrcore.compress(model, cell_recipe, factors)
        pairs = [lrcore.measure_speed([model, compressed], rounds=1) for _ in range(TURNS)]
        ratio_to_dense = median(dense.decode / speed.decode for dense, speed in pairs)
        dense = 1e3 / median(dense.decode for dense, _ in pairs)
        first = entry.setdefault("dense_milliseconds", round(dense, 3))
        cell["milliseconds"] = round(first * ratio_to_dense, 3)
        cell["megabytes"] = round(compressed.size.megabytes, 3)
        log(f"{key}: {ratio_to_dense:.3f} of {dense:.3f} ms")
        save()


def measure_steps(
    subject: Subject, cells: dict[str, Cell], dense: float, save: Callable[[], None]
) -> None:
    """Make the models that build/pareto lacks and add the cells of all steps by name.

    dense: milliseconds per token of the dense model, which the ratios are multiplied by.
    """
    model = lrcore.load(subject.recipe.model)
    for series, row in STEPS.items():
        sweep = lrcore.Sweep(
            subject.recipe, evaluations=(subject.evaluation,), rows=[row], speed=True
        )
        rows = lrcore.run_sweep(model, sweep, FOLDER / subject.title / series)
        cells.update(step_cells(series, rows[1:], dense))
        log(f"{series}: {len(rows) - 1} models")
        save()


def step_cells(series: str, rows: list[SweepRow], dense: float) -> Iterator[tuple[str, Cell]]:
    """Yield name and cell of each measured row."""
    for row in rows:
        if row.perplexity is None or row.decode_speedup is None:
            continue
        cell = {
            "series": series,
            "perplexity": round(row.perplexity, 4),
            "parameters": row.parameters,
            "kv_bytes": row.kv_bytes_per_token,
            "megabytes": round(row.megabytes, 3),
            "milliseconds": round(dense / row.decode_speedup, 3),
        }
        if row.ratio is None:
            yield " ".join(part for part in (row.method, row.policy) if part), cell
        else:
            yield f"{series} {row.ratio:.0%}", cell


# ---- picture


def points(entry: Entry) -> dict[str, list[Point]]:
    """Return the points of each panel, by the field of a cell."""
    panels: dict[str, list[Point]] = {name: [] for name in AXES}
    for name, series, cell in pictured_models(entry):
        for field, panel in panels.items():
            if field in cell and cell["perplexity"] <= HIGHEST:
                x = cell[field] / (1e6 if field == "parameters" else 1)
                panel.append(Point(name, series, x, cell["perplexity"]))
    return panels


def pictured_models(entry: Entry) -> Iterator[tuple[str, str, Cell]]:
    """Yield name, series and cell of each model in the picture."""
    for _, method, policy, ratio, cell in pictured_cells(entry["cells"]):
        series = f"{method} probed" if policy == "probed" else method
        yield f"{series} {ratio:.0%}", series, cell
    for name, cell in entry.get("steps", {}).items():
        yield name, cell["series"], cell


def draw(panels: dict[str, list[Point]]) -> str:
    """Return the picture as SVG, for light and dark pages."""
    series = list(dict.fromkeys(p.series for panel in panels.values() for p in panel))
    number = {name: i for i, name in enumerate(series)}
    bottom = -(-len(panels) // ACROSS) * (TOP + PANEL + BOTTOM) + 12
    width = ACROSS * (PANEL + GAP) + 14
    height = bottom + -(-len(series) // COLUMNS) * LINE
    parts = []
    for i, (field, panel) in enumerate(panels.items()):
        x, y = GAP + i % ACROSS * (PANEL + GAP), TOP + i // ACROSS * (TOP + PANEL + BOTTOM)
        parts.append(_panel(panel, number, x, y, field))
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


def _panel(points: list[Point], number: dict[str, int], x: float, y: float, field: str) -> str:
    """Draw a panel at (x, y): axes, Pareto front (dashed line) and points."""
    across = Axis([p.x for p in points], x, x + PANEL, log=field in LOGARITHMIC)
    up = Axis([p.y for p in points], y + PANEL, y, log=True)
    front = " ".join(f"{across(p.x):.1f},{up(p.y):.1f}" for p in report.pareto(points))
    parts = [
        _frame(across, up, x, y, AXES[field]),
        f'<polyline points="{front}" class="front"/>',
    ]
    for p in points:
        title = f"<title>{escape(f'{p.name}: {p.x:.4g}, perplexity {p.y:.3f}')}</title>"
        parts.append(_mark(number[p.series], across(p.x), up(p.y), title))
    return "".join(parts)


def _mark(number: int, x: float, y: float, title: str = "") -> str:
    """Draw the mark of a series: circles in all colors, then squares, then triangles."""
    fill = f'fill="{COLORS[number % len(COLORS)]}" fill-opacity=".85"'
    shape = number // len(COLORS)
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill}>{title}</circle>'
    if shape == 1:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {fill}>{title}</rect>'
    corners = f"{x - 5:.1f},{y + 4:.1f} {x + 5:.1f},{y + 4:.1f} {x:.1f},{y - 5:.1f}"
    return f'<polygon points="{corners}" {fill}>{title}</polygon>'


def _frame(across: Axis, up: Axis, x0: float, y0: float, name: str) -> str:
    """Draw grid, ticks and names of a panel at (x0, y0)."""
    bottom, parts = y0 + PANEL, [f'<text x="{x0}" y="{y0 - 12}">perplexity</text>']
    for value in up.ticks():
        y = up(value)
        parts.append(f'<line class="grid" x1="{x0}" x2="{x0 + PANEL}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in across.ticks():
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y0}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{value:.4g}</text>')
    middle = x0 + PANEL / 2
    parts.append(f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle">{name}</text>')
    return "".join(parts)
