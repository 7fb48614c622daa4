"""Excess loss over size or time: the points, and what they say."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import lrcore

from ... import run_text, saving_text, text
from ...figures.comparison import Panel, Point, dominating
from .metrics import SPEEDS
from .protocols import protocol_of

AXES = {
    "size (MB)": "megabytes",
    "parameters": "parameters",
    "KV cache (bytes per token)": "kv_bytes_per_token",
    "FLOPs per token": "flops_per_token",
    "decode time per token (ms)": "decode",
    "prefill time per token (ms)": "prefill",
}
MOST_NAMED, MOST_PANELS, MOST_DRAWN = 4, 4, 500


def panels(
    runs: Sequence[lrcore.Run],
    protocol: str | None,
    axis: str,
    speeds: Mapping[str, Any],
    ids: Sequence[str],
) -> list[Panel]:
    """A panel for the chosen protocol, then one for every other base model: of the chosen runs
    first, then of the newest. Of very many runs the newest are drawn, and the chosen ones.

    runs: oldest first; ids: of the chosen ones.
    """
    newest = {run.id for run in runs[-MOST_DRAWN:]}
    drawn = [run for run in runs if run.id in newest or run.id in ids]
    order = [*(run for run in drawn if run.id in ids), *reversed(drawn)]
    known: dict[str, list[str]] = {}
    for run in order:
        names = (protocol_of(run, one) for one in reversed(run.evaluations))
        known.setdefault(run.recipe.model, []).extend(names)
    made = []
    for model, names in known.items():
        chosen = next((name for name in names if name == protocol), next(iter(names), None))
        own = [run for run in drawn if run.recipe.model == model]
        some = points(own, chosen, axis, speeds)
        if some:
            made.append(Panel(model, (chosen or "").removeprefix(f"{model}: "), some))
    first = [one for one in made if f"{one.model}: {one.protocol}" == protocol]
    return [*first, *(one for one in made if one not in first)][:MOST_PANELS]


def points(
    runs: Sequence[lrcore.Run], protocol: str | None, axis: str, speeds: Mapping[str, Any]
) -> list[Point]:
    """All runs measured under one protocol, and their dense model.

    Times are those measured, of runs that have any; the dense model's, which took turns with each
    run, is the median.
    """
    drawn: list[Point] = []
    dense: list[tuple[float, float]] = []  # of each run its dense model's place and perplexity
    for run in runs:
        one = next((one for one in run.evaluations if protocol_of(run, one) == protocol), None)
        if one is None or not one["perplexity"] or not one["dense_perplexity"]:
            continue
        if axis in SPEEDS and run.id not in speeds:
            continue
        x, dense_x = place(run, axis, speeds)
        dense.append((dense_x, one["dense_perplexity"]))
        drawn.append(point(run, one, x))
    if not drawn:
        return []
    x, perplexity = median(x for x, _ in dense), dense[0][1]
    return [Point("dense", "dense", x, perplexity, protocol or "", ""), *drawn]


def on_one_device(runs: Sequence[lrcore.Run], speeds: Mapping[str, Any]) -> dict[str, Any]:
    """The speeds that were measured where that of the newest run was."""
    known = [run.id for run in runs if run.id in speeds]
    where = speeds[known[-1]].get("where") if known else None
    return {one: speeds[one] for one in known if speeds[one].get("where") == where}


def point(run: lrcore.Run, evaluation: Mapping[str, Any], x: float) -> Point:
    """A run where it stands on an axis."""
    summary, after = run.account.to_dict(), run_text.afterwards(run)
    return Point(
        run.name,
        run.method,
        x,
        evaluation["perplexity"],
        f"{run.policy}, {summary['achieved']:.1%} {summary['budget']} removed",
        run.id,
        math.log(evaluation["perplexity"] / evaluation["dense_perplexity"]),
        evaluation.get("delta_error"),
        " · ".join((run.policy, *after)),
        run_text.ratio(run),
    )


def place(run: lrcore.Run, axis: str, speeds: Mapping[str, Any]) -> tuple[float, float]:
    """Where a run and its dense model stand on an axis; times in ms per token."""
    if axis in SPEEDS:
        own = speeds[run.id]
        return 1000 / own["small"][axis], 1000 / own["dense"][axis]
    summary = run.account.to_dict()
    return summary[axis], summary[f"dense_{axis}"]


def of_times(
    panels: Sequence[Panel], runs: Sequence[lrcore.Run], speeds: Mapping[str, Any], axis: str
) -> str:
    """How the times on show were measured, and which runs are left out since theirs was not.

    Between two measurements a machine may be busier: what the dense model took in them says so.
    """
    drawn = [point.run for panel in panels for point in panel.runs]
    where = (speeds[drawn[-1]].get("where") or {}).get("device", "")
    dense = {
        panel.model: [1000 / speeds[point.run]["dense"][axis] for point in panel.runs]
        for panel in panels
    }
    lacking = [run.name for run in runs if run.evaluations and run.id not in drawn]
    return run_text.times(dense, where) + run_text.left_out(lacking)


def caption(panels: Sequence[Panel], runs: Sequence[lrcore.Run]) -> str:
    """Of each panel the model, what it was measured on, and what its runs were calibrated on."""
    parts = []
    for panel in panels:
        ids = {point.run for point in panel.runs}
        recipes = [run.recipe for run in runs if run.id in ids]
        parts.append(saving_text.measured(panel.model, panel.protocol, recipes))
    return "; ".join(parts)


def conclusion(points: Sequence[Point], model: str = "") -> str:
    """Which runs no other dominates, and by which the others are dominated, in size and
    perplexity. model: of all of them; where a run's name ends with it, that is left out.
    """
    runs = [point for point in points if point.run]
    if len(runs) < 2:
        return text.FEW_POINTS
    ending = f" · {model.rstrip('/').rpartition('/')[2]}"
    pairs = [(one, dominating(one, points)) for one in runs]
    dominated = [
        (one.name.removesuffix(ending), other.name.removesuffix(ending))
        for one, other in pairs
        if other is not None
    ]
    front = [one.name.removesuffix(ending) for one, other in pairs if other is None]
    sentences = text.FRONT.format(", ".join(front[:MOST_NAMED])) if front else ""
    sentences += "".join(text.DOMINATED.format(*pair) for pair in dominated[:MOST_NAMED])
    more = len(dominated) - MOST_NAMED
    return sentences + (text.DOMINATED_MORE.format(more) if more > 0 else "")
