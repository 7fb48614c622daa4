"""Perplexity over size or time: the points, and what they say."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore

from ... import text
from ...figures.comparison import Point, dominating
from .protocols import protocol_of

AXES = {
    "size (MB)": "megabytes",
    "parameters": "parameters",
    "KV cache (bytes per token)": "kv_bytes_per_token",
    "FLOPs per token": "flops_per_token",
    "decode time per token (dense: 1)": "decode",
    "prefill time per token (dense: 1)": "prefill",
}
SPEEDS = ("prefill", "decode")
MOST_NAMED = 4


def points(
    runs: Sequence[lrcore.Run], protocol: str | None, axis: str, speeds: Mapping[str, Any]
) -> list[Point]:
    """All runs measured under one protocol, and their dense model.

    Times are shares of the dense model's, which took turns with the run.
    """
    drawn: list[Point] = []
    for run in runs:
        one = next(
            (
                one
                for one in run.evaluations
                if protocol_of(run, one) == protocol and one["perplexity"]
            ),
            None,
        )
        if one is None or (axis in SPEEDS and run.id not in speeds):
            continue
        x, dense_x = place(run, axis, speeds)
        if not drawn and one["dense_perplexity"]:
            drawn.append(Point("dense", "dense", dense_x, one["dense_perplexity"], protocol, ""))
        summary = run.account.to_dict()
        note = f"{run.policy}, {summary['achieved']:.1%} {summary['budget']} removed"
        drawn.append(Point(run.name, run.method, x, one["perplexity"], note, run.id))
    return drawn


def place(run: lrcore.Run, axis: str, speeds: Mapping[str, Any]) -> tuple[float, float]:
    """Where a run and its dense model stand on an axis."""
    if axis in SPEEDS:
        own = speeds[run.id]
        return own["dense"][axis] / own["small"][axis], 1.0
    summary = run.account.to_dict()
    return summary[axis], summary[f"dense_{axis}"]


def conclusion(points: Sequence[Point]) -> str:
    """Which runs no other dominates, and by which the others are dominated, in size and
    perplexity.
    """
    runs = [point for point in points if point.run]
    if len(runs) < 2:
        return text.FEW_POINTS
    dominated = [
        (one.name, other.name) for one in runs if (other := dominating(one, points)) is not None
    ]
    names = {name for name, _ in dominated}
    front = [point.name for point in runs if point.name not in names]
    sentences = text.FRONT.format(" or ".join(front[:MOST_NAMED])) if front else ""
    sentences += "".join(text.DOMINATED.format(*pair) for pair in dominated[:MOST_NAMED])
    more = len(dominated) - MOST_NAMED
    return sentences + (text.DOMINATED_MORE.format(more) if more > 0 else "")
