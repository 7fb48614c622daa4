"""Tables of the papers that ship as sweeps, on SmolLM2-135M-Instruct and WikiText-2."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import lrcore

from .page import ROOT, note, table, write_section
from .real import MODEL, reference_text, subject

NAMES = ("a3-table1", "latentllm-table2")  # a section of docs/benchmarks.md each
MOST = 1e4  # a perplexity beyond says nothing by its digits


def recipes(only: list[str]) -> None:
    """Make the cells that are missing in build/recipes, and write every table once it is whole."""
    if (text := reference_text(only)) is None:
        return
    model = lrcore.load(MODEL)
    for name in NAMES:
        sweep = on_real_text(lrcore.Sweep.read(name), text)
        folder = ROOT / "build" / "recipes" / name
        rows = lrcore.run_sweep(model, sweep, folder, progress)
        write_section(f"recipe {name}", shown(name, rows))


def on_real_text(sweep: lrcore.Sweep, text: Path) -> lrcore.Sweep:
    """The sweep on SmolLM2-135M, calibrated and measured as in the table of all methods."""
    one = subject(text)
    base = sweep.base.with_(
        model=MODEL, data=one.recipe.data, samples=one.recipe.samples, seq_len=one.recipe.seq_len
    )
    return replace(sweep, base=base, evaluations=(one.evaluation,))


def progress(stage: str, done: int, total: int) -> None:
    if stage == "sweep":
        note(f"{done} of {total} cells")


def shown(name: str, rows: Sequence[lrcore.SweepRow]) -> str:
    """A line for every row of the recipe, a column for every ratio; then what takes no ratio."""
    dense = rows[0]
    by_ratio = [row for row in rows[1:] if row.ratio is not None]
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
    if others := list(without_ratio(rows[1:])):
        parts.append(table(["step", "removed", "perplexity"], others))
    return "\n\n".join(parts)


def without_ratio(rows: Sequence[lrcore.SweepRow]) -> Iterator[list[str]]:
    for row in rows:
        if row.ratio is None:
            removed = "–" if row.achieved is None else f"{row.achieved:.1%}"
            yield [what(row), removed, figure(row)]


def what(row: lrcore.SweepRow) -> str:
    """The method or step of a row, with all that is not the default."""
    return ", ".join(part for part in (f"`{row.method}`", row.options, row.then) if part)


def figure(row: lrcore.SweepRow) -> str:
    if row.perplexity is None:
        return "refused" if row.error else "–"
    return f"{row.perplexity:.2f}" if row.perplexity < MOST else f"{row.perplexity:.1e}"
