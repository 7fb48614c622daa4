"""Tables derived from the record: the best pairings, the margin of `fused` with `probed`, and the
policies compared with uniform ranks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lrcore

from .report import ROOT, table, with_error, write_section
from .subjects import RATIOS

BEST = ("fused", "probed")
# The policies of a method in its paper, in addition to uniform ranks
PUBLISHED = {
    "a3": ("mix",),
    "modegpt": ("softmax",),
    "svd_llm": ("svd_llm_v2",),
    "flap": ("global_ranking",),
    "llm_pruner": ("global_ranking",),
    "llm_surgeon": ("global_ranking",),
}
# Methods with a parameter budget that were measured with all policies
COMPARED_METHODS = ("svd", "svd_llm", "a3", "modegpt", "latentllm", "fused")
ADVICE = ROOT / "docs" / "choosing.md"
Entry = Mapping[str, Any]
Cell = tuple[str, str, str]  # method, policy, budget
Perplexities = dict[tuple[str, str], float]  # by method and policy


# ---- margin of `fused` with `probed`


def write_margins(title: str, entry: Entry, ratios: Sequence[float]) -> None:
    """Write the margins on a model to docs/benchmarks/."""
    write_section(f"standing {title}", margins(title, entry, ratios))


def margins(title: str, entry: Entry, ratios: Sequence[float]) -> str:
    """Return a row per ratio: `fused` with `probed`, the next best pairing, and the loss increase
    divided by the lowest increase of a different method under uniform ranks and as published
    ("–" if that is not positive).
    """
    header = [
        "removed",
        "`fused` with `probed`",
        "next best pairing",
        "difference",
        "increase / lowest with uniform ranks",
        "increase / lowest as published",
    ]
    rows = list(margin_rows(entry, ratios))
    return f"**{title}**, dense {entry['dense']:.3f}:\n\n{table(header, rows)}"


def margin_rows(entry: Entry, ratios: Sequence[float]) -> Iterator[list[str]]:
    """Yield the rows of the measured ratios."""
    for ratio in ratios:
        measured = perplexities(entry["cells"], ratio)
        lowest_published = lowest_of_different_methods(measured)
        if BEST not in measured or lowest_published is None:  # not measured yet
            continue
        runner_up = min((pair for pair in measured if pair != BEST), key=measured.__getitem__)
        cells = [
            with_error(entry["cells"][f"{method} {policy} params {ratio}"])
            for method, policy in (BEST, runner_up)
        ]
        yield [
            f"{ratio:.0%}",
            cells[0],
            f"{cells[1]} {' '.join(runner_up)}",
            f"{measured[BEST] / measured[runner_up] - 1:+.2%}",
            *(
                increase_ratio(measured[BEST], lowest, entry["dense"])
                for lowest in lowest_published
            ),
        ]


def lowest_of_different_methods(measured: Perplexities) -> tuple[float, float] | None:
    """Return the lowest perplexity of the methods except `fused`, under uniform ranks and as
    published; None if no method was measured.
    """
    different = {pair: value for pair, value in measured.items() if pair[0] != BEST[0]}
    uniform = [value for (_, policy), value in different.items() if policy == "uniform"]
    if not uniform:
        return None
    published = [
        value
        for (method, policy), value in different.items()
        if policy == "uniform" or policy in PUBLISHED.get(method, ())
    ]
    return min(uniform), min(published)


def perplexities(cells: Mapping[str, Any], ratio: float) -> Perplexities:
    """Return the perplexities of all pairings with a parameter budget at a ratio."""
    measured: Perplexities = {}
    for key, cell in cells.items():
        method, policy, budget, cell_ratio = key.split()
        if budget == "params" and float(cell_ratio) == ratio:
            measured[method, policy] = cell["perplexity"]
    return measured


def increase_ratio(perplexity: float, reference: float, dense: float) -> str:
    """Return the loss increase of a perplexity divided by that of a reference perplexity."""
    increase = math.log(reference / dense)
    return f"{math.log(perplexity / dense) / increase:.2f}" if increase > 0 else "–"


# ---- policies compared with uniform ranks


def write_policies(record: Mapping[str, Any]) -> None:
    """Write the comparison of the policies to docs/benchmarks/."""
    write_section("policies", policies_table(record))


def policies_table(record: Mapping[str, Any]) -> str:
    """Return a row per policy that was measured with all compared methods, ratios and models."""
    titles = sorted(title for title, entry in record.items() if _changes(entry, "probed"))
    header = ["policy", *titles, "best against uniform", "worst", "better than `probed`"]
    return table(header, list(_policy_rows(record, titles)))


def _policy_rows(record: Mapping[str, Any], titles: list[str]) -> Iterator[list[str]]:
    for policy in (row["name"] for row in lrcore.list_policies() if row["name"] != "uniform"):
        by_model = [_changes(record[title], policy) for title in titles]
        if not all(by_model):
            continue
        changes = [change for model in by_model for change in model]
        to_probed = [
            change for title in titles for change in _changes(record[title], policy, "probed")
        ]
        yield [
            f"`{policy}`",
            *(_negative(model) for model in by_model),
            f"{min(changes):+.1%}",
            f"{max(changes):+.1%}",
            "–" if policy == "probed" else _negative(to_probed),
        ]


def _negative(changes: list[float]) -> str:
    return f"{sum(change < 0 for change in changes)} of {len(changes)}"


def _changes(entry: Entry, policy: str, reference: str = "uniform") -> list[float]:
    """Return the relative change of the perplexity against a reference policy for all compared
    methods and ratios; empty if a cell was not measured.
    """
    changes = []
    for method in COMPARED_METHODS:
        for ratio in RATIOS:
            cell, reference_cell = (
                entry["cells"].get(f"{method} {name} params {ratio}")
                for name in (policy, reference)
            )
            if not cell or not reference_cell:
                return []
            changes.append(cell["perplexity"] / reference_cell["perplexity"] - 1)
    return changes


# ---- best pairings, for docs/choosing.md


def write_choice(title: str, entry: dict[str, Any]) -> None:
    """Write the best pairings on a model to docs/choosing.md."""
    write_section(f"choice {title}", choice_block(title, entry), ADVICE)


def choice_block(title: str, entry: dict[str, Any]) -> str:
    """Return the section of a model in docs/choosing.md."""
    return f"**{title}**, dense {entry['dense']:.3f}:\n\n{choice_table(entry)}"


def choice_table(entry: dict[str, Any]) -> str:
    """Return a row per restriction on the pairings, with the lowest perplexity and the pairing at
    each ratio.
    """
    kv = {method["name"] for method in lrcore.list_methods() if method["supports"]["kv_budget"]}
    needs = {policy["name"]: policy["needs"] for policy in lrcore.list_policies()}
    restrictions: dict[str, Callable[[Cell], bool]] = {
        "any": lambda cell: cell[2] == "params",
        "without a measurement on the model": lambda cell: (
            cell[2] == "params" and needs[cell[1]] == "spectra"
        ),
        "uniform ranks": lambda cell: cell[2] == "params" and cell[1] == "uniform",
        "smaller KV cache too": lambda cell: cell[2] == "params" and cell[0] in kv,
        "KV cache only": lambda cell: cell[2] == "kv",
    }
    rows = []
    for title, is_allowed in restrictions.items():
        cells = [best_pairing(entry["cells"], ratio, is_allowed) for ratio in RATIOS]
        if all(cells):
            rows.append([title, *cells])
    return table(["pairings", *(f"{ratio:.0%}" for ratio in RATIOS)], rows)


def best_pairing(cells: dict[str, Any], ratio: float, is_allowed: Callable[[Cell], bool]) -> str:
    """Return the lowest allowed perplexity with the pairing, such as "1.524 ± 0.001 fused probed";
    empty if none is allowed.
    """
    candidates = []
    for key, cell in cells.items():
        method, policy, budget, cell_ratio = key.split()
        if float(cell_ratio) == ratio and is_allowed((method, policy, budget)):
            candidates.append((cell["perplexity"], f"{with_error(cell)} {method} {policy}"))
    return min(candidates)[1] if candidates else ""
