"""Accuracy on questions with images: LatentLLM's table 4 on a small LLaVA, trained here."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import lrcore
from lrcore.runs.sweep_rows import SweepRow

from .report import ROOT, log, table, write_section

FOLDER = ROOT / ".train"
GROUPS = ("colour", "shape", "place", "TXT", "IMG")
TASK = "shapes"
RATIOS = (0.3, 0.5, 0.7, 0.9)  # low-rank pairs lose nothing up to a half
# Rows in addition to those of the paper
ADDITIONS = {
    "a3": {"method": "a3"},
    "modegpt": {"method": "modegpt"},
    "svd_llm": {"method": "svd_llm"},
    "fused": {"method": "fused"},
    "fused, probed": {"method": "fused", "policy": "probed"},
}
PAPER_ROWS = (
    "plain SVD (identity)",
    "ASVD (Hessian)",
    "ASVD (l2 norm)",
    "ASVD (covariance)",
    "ASVD (root covariance)",
    "LatentLLM",
)


def images(models: list[str]) -> None:
    """Train the model if it is missing, and measure the missing cells."""
    if models:
        return
    folder = FOLDER / "llava"
    if not folder.exists():
        log("training a small LLaVA")
        program = [sys.executable, str(ROOT / "scripts" / "train_llava.py"), str(folder)]
        subprocess.run(program, check=True)
    paper = lrcore.Sweep.read("latentllm-table4")
    base = paper.base.with_(model=str(folder), data=TASK, samples=32, seq_len=256, dtype="float32")
    tasks = tuple(replace(settings, task=TASK) for settings in paper.tasks)
    additions = [{"compress": settings} for settings in ADDITIONS.values()]
    sweep = replace(paper, base=base, tasks=tasks, rows=[*paper.rows, *additions], ratios=RATIOS)
    rows = lrcore.run_sweep(
        lrcore.load(str(folder)), sweep, FOLDER / "llava-cells", progress=lambda *_: None
    )
    write_section("images", table(["method", "removed", "all", *GROUPS], list(lines(rows))))


def lines(rows: Sequence[SweepRow]) -> Iterator[list[str]]:
    """Yield a line per model and ratio. rows: for each model, a row for all questions and a row per
    group.
    """
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        model = tuple(map(str, (row.method, row.policy, row.options, row.ratio)))
        group = str(row.measured_on).partition(", ")[2] or "all"
        cells.setdefault(model, {})[group] = figure(row)
    named: dict[str, list[list[str]]] = {}
    for (method, policy, options, ratio), groups in cells.items():
        name = title(method, policy, options)
        removed = "–" if method == "dense" else f"{float(ratio):.0%}"
        figures = [groups.get(group, "–") for group in ("all", *GROUPS)]
        named.setdefault(name, []).append([name, removed, *figures])
    yield from (line for group in named.values() for line in group)


def figure(row: SweepRow) -> str:
    """Return the accuracy in percent ± standard error."""
    if row.accuracy is None:
        return "–"
    return f"{100 * row.accuracy:.1f} ± {100 * (row.accuracy_error or 0):.1f}"


def title(method: str, policy: str, options: str) -> str:
    """Return the name of a row; LatentLLM's options have the names of the paper."""
    if method != "latentllm":
        return method if policy in ("uniform", "None") else f"{method}, {policy}"
    indices = {"identity": 0, "diag_hessian": 1, "diag_l2": 2, "covariance": 3}
    matches = [index for key, index in indices.items() if f"preconditioner={key}" in options]
    return PAPER_ROWS[matches[0] if matches else 4 if "attention=local" in options else 5]
