"""Tables of the papers that ship as sweeps, on SmolLM2-135M-Instruct and WikiText-2."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lrcore
from lrcore.errors import unknown

from .page import ROOT, note, table, write_section
from .real import MODEL, reference_text, subject

# A section of docs/benchmarks.md each
NAMES = ("a3-table1", "latentllm-table2", "care-table1", "modegpt-table2")
DEPTHS = [3, 6, 9, 12, 15]  # layers of the 30 that leave 10 to 50 % out
SEARCHED = 4  # windows by which a search by the loss chooses
MOST = 1e4  # a perplexity beyond says nothing by its digits


def check_names(only: list[str]) -> None:
    """Raises InputError for a recipe that has no section."""
    for name in only:
        if name not in NAMES:
            raise unknown("recipe", name, NAMES)


def recipes(only: list[str]) -> None:
    """Make the cells that are missing in build/recipes, and write every table once it is whole: of
    the recipes named, of all where nothing is. Of other names, those of models, there is none.
    """
    names = [name for name in NAMES if not only or name in only]
    if not names or (text := reference_text([])) is None:
        return
    model = lrcore.load(MODEL)
    for name in names:
        sweep = on_real_text(lrcore.Sweep.read(name), text)
        folder = ROOT / "build" / "recipes" / name
        rows = lrcore.run_sweep(model, sweep, folder, progress)
        write_section(f"recipe {name}", shown(name, rows, model.size.decoder_linear))


def on_real_text(sweep: lrcore.Sweep, text: Path) -> lrcore.Sweep:
    """The sweep on SmolLM2-135M, calibrated and measured as in the table of all methods, with
    numbers of layers that suit it.
    """
    one = subject(text)
    base = sweep.base.with_(
        model=MODEL, data=one.recipe.data, samples=one.recipe.samples, seq_len=one.recipe.seq_len
    )
    rows = sorted(map(_with_depths, sweep.rows), key=_takes_long)
    return replace(sweep, base=base, rows=rows, evaluations=(one.evaluation,))


def _with_depths(row: Any) -> Any:
    """A row of the file, with the numbers of layers of `DEPTHS` where it drops some. A search by
    the loss, which measures the model without each layer that is left, drops two times the first
    of them, by `SEARCHED` windows.
    """
    if not isinstance(row, dict) or "shorten" not in row:
        return row
    step = row["shorten"] | {"layers": DEPTHS}
    if step.get("by") != "loss":
        return {"shorten": step}
    first = {"shorten": step | {"layers": DEPTHS[0], "samples": SEARCHED}}
    return [first, first]


def _takes_long(row: Any) -> bool:
    return isinstance(row, list) and "shorten" in row[0]


def progress(stage: str, done: int, total: int) -> None:
    if stage == "sweep":
        note(f"{done} of {total} cells")


def shown(name: str, rows: Sequence[lrcore.SweepRow], linear: int) -> str:
    """A line for every row of the recipe, a column for every ratio; then what takes no ratio, and
    what takes several steps. linear: decoder-linear parameters of the dense model.
    """
    dense = rows[0]
    by_ratio = [row for row in rows[1:] if row.ratio is not None and not row.then]
    ratios = sorted({row.ratio for row in by_ratio})
    cells: dict[tuple[str, str], dict[float, str]] = {}
    for row in by_ratio:
        cells.setdefault((what(row), row.policy or "–"), {})[row.ratio] = figure(row)
    parts = [
        f"`python -m lrcore sweep {name}` on {MODEL}: dense perplexity {dense.perplexity:.2f}, "
        f"{dense.kv_bytes_per_token} KV bytes per token; share removed of the "
        f"{'KV cache' if name.startswith('care') else 'decoder-linear parameters'}.",
        table(
            ["method", "policy", *(f"{ratio:.4g}" for ratio in ratios)],
            [[*key, *(own.get(ratio, "–") for ratio in ratios)] for key, own in cells.items()],
        ),
    ]
    if others := [row for row in rows[1:] if row not in by_ratio]:
        lines = [
            [what(row, row.policy), removed(row, dense, linear), figure(row)] for row in others
        ]
        parts.append(table(["step", "removed", "perplexity"], lines))
    return "\n\n".join(parts)


def removed(row: lrcore.SweepRow, dense: lrcore.SweepRow, linear: int) -> str:
    """By all steps together, of the dense model's decoder-linear parameters."""
    if row.parameters is None or dense.parameters is None:
        return "–"
    return f"{(dense.parameters - row.parameters) / linear:.1%}"


def what(row: lrcore.SweepRow, choice: str | None = None) -> str:
    """The method or step of a row, and what chose, with all that is not the default."""
    name = f"`{row.method}` {choice or ''}".strip()
    return ", ".join(part for part in (name, row.options, row.then) if part)


def figure(row: lrcore.SweepRow) -> str:
    if row.perplexity is None:
        return "refused" if row.error else "–"
    shape = ".2f" if row.perplexity < MOST else ".1e"
    error = "" if row.perplexity_error is None else f" ± {row.perplexity_error:{shape}}"
    return f"{row.perplexity:{shape}}{error}"
