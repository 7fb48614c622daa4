"""Tables of the papers that ship as sweeps, on SmolLM2-135M-Instruct and WikiText-2."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lrcore
from lrcore.errors import unknown
from lrcore.evaluation.settings import TaskSettings

from .page import ROOT, note, table, write_section
from .real import MODEL, reference_text, subject

# A section of docs/benchmarks.md each
NAMES = (
    "a3-table1",
    "a3-table2",
    "latentllm-table2",
    "care-table1",
    "modegpt-table2",
    "modegpt-table13",
)
TASKS = ("ARC-Easy.test", "ARC-Challenge.test", "piqa.test", "winogrande.test", "openbookqa.test")
DEPTHS = [3, 6, 9, 12, 15]  # layers of the 30 that leave 10 to 50 % out
MOST = 1e4  # a perplexity beyond says nothing by its digits


def check_names(only: list[str]) -> None:
    """Raises InputError for a recipe that has no section."""
    for name in only:
        if name not in NAMES:
            raise unknown("recipe", name, NAMES)


def recipes(only: list[str]) -> None:
    """Make the cells that are missing in build/recipes, and write every table once it is whole: of
    the recipes named, of all where none is.
    """
    if (text := reference_text([])) is None:
        return
    model = lrcore.load(MODEL)
    for name in only or NAMES:
        sweep = on_real_text(lrcore.Sweep.read(name), text)
        folder = ROOT / "build" / "recipes" / name
        rows = lrcore.run_sweep(model, sweep, folder, progress)
        write_section(f"recipe {name}", shown(name, rows))


def on_real_text(sweep: lrcore.Sweep, text: Path) -> lrcore.Sweep:
    """The sweep on SmolLM2-135M, calibrated and measured as in the table of all methods, with tasks
    and numbers of layers that suit it.
    """
    one = subject(text)
    base = sweep.base.with_(
        model=MODEL, data=one.recipe.data, samples=one.recipe.samples, seq_len=one.recipe.seq_len
    )
    rows = [_with_depths(row) for row in sweep.rows]
    files = [text.parent / "tasks" / f"{name}.jsonl" for name in TASKS if sweep.tasks]
    tasks = [TaskSettings(str(file), items=200) for file in files]
    return replace(sweep, base=base, rows=rows, evaluations=(one.evaluation,), tasks=tasks)


def _with_depths(row: Any) -> Any:
    """A row of the file, with the numbers of layers of `DEPTHS` where it drops some."""
    if isinstance(row, dict) and "shorten" in row:
        return {"shorten": row["shorten"] | {"layers": DEPTHS}}
    return row


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
