"""LatentLLM's table 4 on a small LLaVA that is trained here: accuracy on questions with images."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import lrcore

from .page import ROOT, note, table, write_section

FOLDER = ROOT / ".train"
GROUPS = ("colour", "shape", "place", "TXT", "IMG")
TASK = "shapes"
RATIOS = (0.3, 0.5, 0.7, 0.9)  # as pairs half of this model goes without a loss
# beside the rows of the paper, by the name that the table has for them
OURS = {
    "a3": {"method": "a3"},
    "modegpt": {"method": "modegpt"},
    "svd_llm": {"method": "svd_llm"},
    "fused": {"method": "fused"},
    "fused, probed": {"method": "fused", "policy": "probed"},
}
PAPER = (
    "plain SVD (identity)",
    "ASVD (Hessian)",
    "ASVD (l2 norm)",
    "ASVD (covariance)",
    "ASVD (root covariance)",
    "LatentLLM",
)


def images(only: list[str]) -> None:
    """Train the model where it is not there, and make the cells that are not."""
    if only:
        return
    folder = FOLDER / "llava"
    if not folder.exists():
        note("trains a small LLaVA")
        program = [sys.executable, str(ROOT / "scripts" / "train_llava.py"), str(folder)]
        subprocess.run(program, check=True)
    paper = lrcore.Sweep.read("latentllm-table4")
    base = paper.base.with_(model=str(folder), data=TASK, samples=32, seq_len=256, dtype="float32")
    tasks = tuple(replace(one, task=TASK) for one in paper.tasks)
    own = [{"compress": settings} for settings in OURS.values()]
    sweep = replace(paper, base=base, tasks=tasks, rows=[*paper.rows, *own], ratios=RATIOS)
    rows = lrcore.run_sweep(
        lrcore.load(str(folder)), sweep, FOLDER / "llava-cells", progress=lambda *_: None
    )
    write_section("images", table(["method", "removed", "all", *GROUPS], list(lines(rows))))


def lines(rows: Sequence[lrcore.SweepRow]) -> Iterator[list[str]]:
    """rows: of the dense model and of every cell, one for all questions and one for each group."""
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        made_by = tuple(str(one) for one in (row.method, row.policy, row.options, row.ratio))
        place = str(row.measured_on).partition(", ")[2] or "all"
        cells.setdefault(made_by, {})[place] = shown(row)
    named: dict[str, list[list[str]]] = {}
    for (method, policy, options, ratio), own in cells.items():
        name = title(method, policy, options)
        removed = "–" if method == "dense" else f"{float(ratio):.0%}"
        figures = [own.get(group, "–") for group in ("all", *GROUPS)]
        named.setdefault(name, []).append([name, removed, *figures])
    yield from (line for own in named.values() for line in own)


def shown(row: lrcore.SweepRow) -> str:
    if row.accuracy is None:
        return "–"
    return f"{100 * row.accuracy:.1f} ± {100 * (row.accuracy_error or 0):.1f}"


def title(method: str, policy: str, options: str) -> str:
    if method != "latentllm":
        return method if policy in ("uniform", "None") else f"{method}, {policy}"
    named = {"identity": 0, "diag_hessian": 1, "diag_l2": 2, "covariance": 3}
    found = [at for key, at in named.items() if f"preconditioner={key}" in options]
    return PAPER[found[0] if found else 4 if "attention=local" in options else 5]
