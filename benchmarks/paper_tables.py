"""Published tables that ship as sweeps, on SmolLM2-135M-Instruct and WikiText-2."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lrcore
from lrcore.runs.sweep_rows import SweepRow
from lrcore.system.errors import unknown

from .report import ROOT, log, table, write_section
from .subjects import REAL_MODEL, real_subject, reference_text

# Sections of docs/benchmarks/paper_tables.md
NAMES = ("a3-table1", "latentllm-table2", "care-table1", "modegpt-table2")
DEPTHS = [3, 6, 9, 12, 15]  # dropped layers: 10 to 50 % of 30
SEARCH_WINDOWS = 4  # of a search by the loss
FIXED_LIMIT = 1e4  # larger perplexities are printed in scientific notation


def check_names(names: list[str]) -> None:
    """Raise InputError for a table without a section."""
    for name in names:
        if name not in NAMES:
            raise unknown("recipe", name, NAMES)


def recipes(names: list[str]) -> None:
    """Make the missing cells in build/recipes and write the named tables, or all. Does nothing if
    only models are named.
    """
    tables = [name for name in NAMES if not names or name in names]
    if not tables or (text := reference_text([])) is None:
        return
    model = lrcore.load(REAL_MODEL)
    for name in tables:
        sweep = on_real_text(lrcore.Sweep.read(name), text)
        folder = ROOT / "build" / "recipes" / name
        rows = lrcore.run_sweep(model, sweep, folder, progress)
        write_section(f"recipe {name}", section(name, rows, model.size.decoder_linear))


def on_real_text(sweep: lrcore.Sweep, text: Path) -> lrcore.Sweep:
    """Return the sweep on SmolLM2-135M, calibrated and measured as the table of all methods, with
    adapted numbers of layers.
    """
    subject = real_subject(text)
    recipe = subject.recipe
    base = sweep.base.with_(
        model=REAL_MODEL, data=recipe.data, samples=recipe.samples, seq_len=recipe.seq_len
    )
    rows = sorted(map(_with_depths, sweep.rows), key=_is_slow)
    return replace(sweep, base=base, rows=rows, evaluations=(subject.evaluation,))


def _with_depths(row: Any) -> Any:
    """Return a row of the file with the numbers of layers in `DEPTHS`. A search by the loss, which
    measures the model without each remaining layer, drops the first of these numbers twice, by
    `SEARCH_WINDOWS` windows.
    """
    if not isinstance(row, dict) or "prune-layers" not in row:
        return row
    step = row["prune-layers"] | {"layers": DEPTHS}
    if step.get("criterion") != "loss":
        return {"prune-layers": step}
    search = {"prune-layers": step | {"layers": DEPTHS[0], "samples": SEARCH_WINDOWS}}
    return [search, search]


def _is_slow(row: Any) -> bool:
    return isinstance(row, list) and "prune-layers" in row[0]


def progress(stage: str, done: int, total: int) -> None:
    """Log the number of finished cells."""
    if stage == "sweep":
        log(f"{done} of {total} cells")


def section(name: str, rows: Sequence[SweepRow], linear: int) -> str:
    """Return a table with a line per pairing and a column per ratio, and a table of the rows
    without a ratio or with several steps. linear: decoder-linear parameters of the dense model.
    """
    dense = rows[0]
    single = [row for row in rows[1:] if row.ratio is not None and not row.then]
    ratios = sorted({row.ratio for row in single})
    cells: dict[tuple[str, str], dict[float, str]] = {}
    for row in single:
        cells.setdefault((label(row), row.policy or "–"), {})[row.ratio] = figure(row)
    parts = [
        f"`python -m lrcore sweep {name}` on {REAL_MODEL}: dense perplexity "
        f"{dense.perplexity:.2f}, {dense.kv_bytes_per_token} KV bytes per token; columns: fraction "
        f"of the {'KV cache' if name.startswith('care') else 'decoder-linear parameters'} removed.",
        table(
            ["method", "policy", *(f"{ratio:.4g}" for ratio in ratios)],
            [
                [*pairing, *(figures.get(ratio, "–") for ratio in ratios)]
                for pairing, figures in cells.items()
            ],
        ),
    ]
    if remaining := [row for row in rows[1:] if row not in single]:
        lines = [
            [label(row, row.policy), removed(row, dense, linear), figure(row)] for row in remaining
        ]
        parts.append(table(["step", "removed", "perplexity"], lines))
    return "\n\n".join(parts)


def removed(row: SweepRow, dense: SweepRow, linear: int) -> str:
    """Return the fraction of the decoder-linear parameters removed by all steps."""
    if row.parameters is None or dense.parameters is None:
        return "–"
    return f"{(dense.parameters - row.parameters) / linear:.1%}"


def label(row: SweepRow, criterion: str | None = None) -> str:
    """Return the method or step of a row with the criterion and the options that differ from the
    defaults.
    """
    name = f"`{row.method}` {criterion or ''}".strip()
    return ", ".join(part for part in (name, row.options, row.then) if part)


def figure(row: SweepRow) -> str:
    """Return the perplexity of a row ± standard error."""
    if row.perplexity is None:
        return "refused" if row.error else "–"
    shape = ".2f" if row.perplexity < FIXED_LIMIT else ".1e"
    error = "" if row.perplexity_error is None else f" ± {row.perplexity_error:{shape}}"
    return f"{row.perplexity:{shape}}{error}"
