"""Where `fused` with `probed` stands: its rise of the loss beside those of every other pairing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .page import table, with_error, write_section

OURS = ("fused", "probed")
# The policies of a method in its own paper, besides uniform ranks
PUBLISHED = {
    "a3": ("mix",),
    "modegpt": ("softmax",),
    "svd_llm": ("svd_llm_v2",),
    "flap": ("global_ranking",),
    "llm_pruner": ("global_ranking",),
    "llm_surgeon": ("global_ranking",),
}
Known = dict[tuple[str, str], float]  # method and policy -> perplexity


def standing(own: Mapping[str, Any], ratios: Sequence[float]) -> str:
    """A row per ratio: ours, the lowest other pairing, and our rise as a share of the least rise
    under uniform ranks and of a pairing as published; "–" where theirs is no rise.

    own: a model of docs/benchmarks.json.
    """
    header = [
        "removed",
        "`fused` with `probed`",
        "lowest of the others",
        "ours above it",
        "rise, of the least under uniform ranks",
        "of the least as published",
    ]
    return table(header, list(rows_of(own, ratios)))


def rows_of(own: Mapping[str, Any], ratios: Sequence[float]) -> Iterator[list[str]]:
    for ratio in ratios:
        known = perplexities(own["cells"], ratio)
        others = least_of_others(known)
        if OURS not in known or others is None:  # not measured yet
            continue
        ours = known[OURS]
        lowest = min((pair for pair in known if pair != OURS), key=known.__getitem__)
        shown = [
            with_error(own["cells"][f"{method} {policy} params {ratio}"])
            for method, policy in (OURS, lowest)
        ]
        yield [
            f"{ratio:.0%}",
            shown[0],
            f"{shown[1]} {' '.join(lowest)}",
            f"{ours / known[lowest] - 1:+.2%}",
            *(share(ours, one, own["dense"]) for one in others),
        ]


def least_of_others(known: Known) -> tuple[float, float] | None:
    """The least perplexity of the other methods under uniform ranks, and of a pairing as published;
    None where none is measured.
    """
    others = {pair: one for pair, one in known.items() if pair[0] != OURS[0]}
    uniform = [one for (_, policy), one in others.items() if policy == "uniform"]
    if not uniform:
        return None
    published = [
        one
        for (method, policy), one in others.items()
        if policy == "uniform" or policy in PUBLISHED.get(method, ())
    ]
    return min(uniform), min(published)


def perplexities(cells: Mapping[str, Any], ratio: float) -> Known:
    """Of every pairing with a budget of parameters, at a ratio."""
    known: Known = {}
    for key, cell in cells.items():
        method, policy, budget, own = key.split()
        if budget == "params" and float(own) == ratio:
            known[method, policy] = cell["perplexity"]
    return known


def share(ours: float, theirs: float, dense: float) -> str:
    """Our rise of the loss as a share of theirs."""
    rise = math.log(theirs / dense)
    return f"{math.log(ours / dense) / rise:.2f}" if rise > 0 else "–"


def standing_block(title: str, own: Mapping[str, Any], ratios: Sequence[float]) -> str:
    return f"**{title}**, dense {own['dense']:.3f}:\n\n{standing(own, ratios)}"


def write_standing(title: str, own: Mapping[str, Any], ratios: Sequence[float]) -> None:
    """The table of one model, between its markers in docs/benchmarks.md."""
    write_section(f"standing {title}", standing_block(title, own, ratios))
