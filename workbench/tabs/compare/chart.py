"""Points of the chart of excess loss over size or time, and sentences about the points."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lrcore.runs.runs import Run

from ... import words
from ...figures.comparison import Panel, Point, dominating
from ...views import run_text
from .chosen_runs import protocol_of
from .metrics import SPEEDS

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
    runs: Sequence[Run],
    protocol: str | None,
    axis: str,
    speeds: Mapping[str, Any],
    ids: Sequence[str],
) -> list[Panel]:
    """Return a panel for the selected protocol, then a panel for each other base model.

    A panel's protocol is that of the selected runs, then of the newest. Of very many runs, only
    the newest and the selected ones are drawn. runs: oldest first. ids: of the selected runs.
    """
    newest = {run.id for run in runs[-MOST_DRAWN:]}
    visible_runs = [run for run in runs if run.id in newest or run.id in ids]
    ordered = [*(run for run in visible_runs if run.id in ids), *reversed(visible_runs)]
    protocols: dict[str, list[str]] = {}
    for run in ordered:
        labels = (protocol_of(run, evaluation) for evaluation in reversed(run.evaluations))
        protocols.setdefault(run.recipe.model, []).extend(labels)
    made = []
    for model, names in protocols.items():
        name = next((name for name in names if name == protocol), next(iter(names), None))
        runs_of_model = [run for run in visible_runs if run.recipe.model == model]
        panel_points = points(runs_of_model, name, axis, speeds)
        if panel_points:
            made.append(Panel(model, (name or "").removeprefix(f"{model}: "), panel_points))
    first = [panel for panel in made if f"{panel.model}: {panel.protocol}" == protocol]
    return [*first, *(panel for panel in made if panel not in first)][:MOST_PANELS]


def points(
    runs: Sequence[Run], protocol: str | None, axis: str, speeds: Mapping[str, Any]
) -> list[Point]:
    """Return the point of the dense model, then the points of runs measured with a protocol.

    On an axis of time, runs without a time are left out, and the time of the dense model is the
    median of the measurements with each run.
    """
    run_points: list[Point] = []
    dense: list[tuple[float, float]] = []  # position and perplexity of the dense model, per run
    for run in runs:
        evaluation = next(
            (row for row in run.evaluations if protocol_of(run, row) == protocol), None
        )
        if not evaluation or not evaluation["perplexity"] or not evaluation["dense_perplexity"]:
            continue
        if axis in SPEEDS and run.id not in speeds:
            continue
        x, dense_x = positions(run, axis, speeds)
        dense.append((dense_x, evaluation["dense_perplexity"]))
        run_points.append(point(run, evaluation, x))
    if not run_points:
        return []
    x, perplexity = median(x for x, _ in dense), dense[0][1]
    return [Point("dense", "dense", x, perplexity, protocol or "", ""), *run_points]


def on_one_device(runs: Sequence[Run], speeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the speeds that were measured on the same device as that of the newest run."""
    ids = [run.id for run in runs if run.id in speeds]
    device = speeds[ids[-1]].get("where") if ids else None
    return {run_id: speeds[run_id] for run_id in ids if speeds[run_id].get("where") == device}


def point(run: Run, evaluation: Mapping[str, Any], x: float) -> Point:
    """Return the point of a run at a position on the axis."""
    summary = run.account.to_dict()
    return Point(
        run.name,
        run.method,
        x,
        evaluation["perplexity"],
        f"{run.policy}, {summary['achieved']:.1%} {summary['budget']} removed",
        run.id,
        math.log(evaluation["perplexity"] / evaluation["dense_perplexity"]),
        evaluation.get("delta_error"),
        " · ".join((run.policy, *run_text.later_steps(run))),
        run_text.ratio(run),
    )


def positions(run: Run, axis: str, speeds: Mapping[str, Any]) -> tuple[float, float]:
    """Return the positions of a run and of its dense model on an axis; times in ms per token."""
    if axis in SPEEDS:
        speed = speeds[run.id]
        return 1000 / speed["small"][axis], 1000 / speed["dense"][axis]
    summary = run.account.to_dict()
    return summary[axis], summary[f"dense_{axis}"]


def describe_times(
    panels: Sequence[Panel], runs: Sequence[Run], speeds: Mapping[str, Any], axis: str
) -> str:
    """Return how the times were measured, and which runs are left out without a time.

    The times of the dense model show whether the machine was equally busy in all measurements.
    """
    drawn_ids = [point.run for panel in panels for point in panel.runs]
    device = (speeds[drawn_ids[-1]].get("where") or {}).get("device", "")
    dense = {
        panel.model: [1000 / speeds[point.run]["dense"][axis] for point in panel.runs]
        for panel in panels
    }
    missing = [run.name for run in runs if run.evaluations and run.id not in drawn_ids]
    return run_text.times(dense, device) + run_text.without_times(missing)


def caption(panels: Sequence[Panel], runs: Sequence[Run]) -> str:
    """Return the model, protocol and calibration texts of each panel."""
    captions = []
    for panel in panels:
        ids = {point.run for point in panel.runs}
        recipes = [run.recipe for run in runs if run.id in ids]
        captions.append(
            words.compare_and_runs.measured_caption(panel.model, panel.protocol, recipes)
        )
    return "; ".join(captions)


def conclusion(points: Sequence[Point], model: str = "") -> str:
    """Return the runs that are not dominated in size and perplexity, and a better run for the rest.

    model: the dense model of all runs; names of runs that end with it are shortened.
    """
    text = words.compare_and_runs
    runs = [point for point in points if point.run]
    if len(runs) < 2:
        return text.FEW_POINTS
    ending = f" · {model.rstrip('/').rpartition('/')[2]}"
    pairs = [(run, dominating(run, points)) for run in runs]
    dominated = [
        (run.name.removesuffix(ending), better.name.removesuffix(ending))
        for run, better in pairs
        if better is not None
    ]
    front = [run.name.removesuffix(ending) for run, better in pairs if better is None]
    named = ", ".join(front[:MOST_NAMED])
    if len(front) > MOST_NAMED:
        named += text.AND_MORE.format(len(front) - MOST_NAMED)
    sentences = text.FRONT.format(named) if front else ""
    sentences += "".join(text.DOMINATED.format(*pair) for pair in dominated[:MOST_NAMED])
    unnamed = len(dominated) - MOST_NAMED
    return sentences + (text.MORE_DOMINATED.format(unnamed) if unnamed > 0 else "")
