"""What docs/choosing.md advises by: the lowest perplexities of the record, by what they ask for."""

from collections.abc import Callable
from typing import Any

import lrcore

from .page import RATIOS, ROOT, table, with_error, write_section

PAGE = ROOT / "docs" / "choosing.md"
Cell = tuple[str, str, str]  # method, policy, budget


def choice_table(own: dict[str, Any]) -> str:
    """Rows: who may use which pairings; columns: the lowest of them at every ratio, and its name.

    own: a model of docs/benchmarks.json.
    """
    kv = {method["name"] for method in lrcore.methods() if method["supports"]["kv_budget"]}
    needs = {policy["name"]: policy["needs"] for policy in lrcore.policies()}
    rows: dict[str, Callable[[Cell], bool]] = {
        "any": lambda cell: cell[2] == "params",
        "without a measurement on the model": lambda cell: (
            cell[2] == "params" and needs[cell[1]] == "spectra"
        ),
        "uniform ranks": lambda cell: cell[2] == "params" and cell[1] == "uniform",
        "smaller KV cache too": lambda cell: cell[2] == "params" and cell[0] in kv,
        "KV cache alone": lambda cell: cell[2] == "kv",
    }
    lines = []
    for title, allowed in rows.items():
        cells = [lowest(own["cells"], ratio, allowed) for ratio in RATIOS]
        if all(cells):
            lines.append([title, *cells])
    return table(["pairings", *(f"{ratio:.0%}" for ratio in RATIOS)], lines)


def lowest(cells: dict[str, Any], ratio: float, allowed: Callable[[Cell], bool]) -> str:
    """The least of the allowed pairings, "1.524 ± 0.001 fused probed"; empty of none."""
    known = []
    for key, cell in cells.items():
        method, policy, budget, share = key.split()
        if float(share) == ratio and allowed((method, policy, budget)):
            known.append((cell["perplexity"], f"{with_error(cell)} {method} {policy}"))
    if not known:
        return ""
    return min(known)[1]


def write_choice(title: str, own: dict[str, Any]) -> None:
    """The table of one model, between its markers in docs/choosing.md."""
    write_section(f"choice {title}", choice_block(title, own), PAGE)


def choice_block(title: str, own: dict[str, Any]) -> str:
    return f"**{title}**, dense {own['dense']:.3f}:\n\n{choice_table(own)}"
