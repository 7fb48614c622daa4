"""Every policy against uniform ranks, over the methods that have a budget of parameters and were
measured with all policies: how often it is better, and by how much.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import lrcore

from .page import RATIOS, table, write_section

METHODS = ("svd", "svd_llm", "a3", "modegpt", "latentllm", "fused")
SECTION = "policies"


def write_by_policy(record: Mapping[str, Any]) -> None:
    """The table between its markers in docs/benchmarks.md.

    record: all of docs/benchmarks.json.
    """
    write_section(SECTION, by_policy(record))


def by_policy(record: Mapping[str, Any]) -> str:
    """A row per policy of which all cells are measured, on the models that have one."""
    titles = sorted(title for title, own in record.items() if _changes(own, "probed", "uniform"))
    header = ["policy", *titles, "best against uniform", "worst", "better than `probed`"]
    return table(header, list(_rows(record, titles)))


def _rows(record: Mapping[str, Any], titles: list[str]) -> Iterator[list[str]]:
    for policy in (row["name"] for row in lrcore.policies() if row["name"] != "uniform"):
        each = [_changes(record[title], policy, "uniform") for title in titles]
        if not all(each):
            continue
        every = [change for own in each for change in own]
        beside = [one for title in titles for one in _changes(record[title], policy, "probed")]
        yield [
            f"`{policy}`",
            *(_below(own) for own in each),
            f"{min(every):+.1%}",
            f"{max(every):+.1%}",
            "–" if policy == "probed" else _below(beside),
        ]


def _below(changes: list[float]) -> str:
    return f"{sum(one < 0 for one in changes)} of {len(changes)}"


def _changes(own: Mapping[str, Any], policy: str, other: str) -> list[float]:
    """The perplexity by a policy over that by another one, minus 1, of all methods and ratios;
    nothing where one of them is not measured.
    """
    changes = []
    for method in METHODS:
        for ratio in RATIOS:
            first, second = (
                own["cells"].get(f"{method} {name} params {ratio}") for name in (policy, other)
            )
            if not first or not second:
                return []
            changes.append(first["perplexity"] / second["perplexity"] - 1)
    return changes
