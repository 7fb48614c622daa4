"""What is known of runs beside perplexity: by component, on a task, and their speed."""

from collections.abc import Mapping, Sequence
from typing import Any

import lrcore

from ...store import Store

ALONE = {"loss_qk": "qk", "loss_ov": "ov", "loss_mlp": "mlp"}
ERRORS = {"error_scores": "scores", "error_ov": "ov", "error_mlp": "mlp"}
LAST = {"error_residual": "residual"}
BOUNDED = {"bound_qk": "qk", "bound_ov": "ov", "bound_mlp": "mlp"}
Details = Mapping[str, Mapping[str, Any]]  # kind of result -> figures


def details(store: Store, runs: Sequence[lrcore.Run]) -> dict[str, Details]:
    """The latest results of each kind, by the id of the run."""
    kinds = ("contributions", "local errors", "bounds", "tasks")
    kept = {run.id: {kind: store.runs.results(run.id, kind) for kind in kinds} for run in runs}
    return {
        run_id: {kind: rows[-1] for kind, rows in own.items() if rows}
        for run_id, own in kept.items()
    }


def run_values(own: Details) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of a run by metric, and their standard errors."""
    names = {"contributions": ALONE, "local errors": ERRORS | LAST, "bounds": BOUNDED}
    values = {
        metric: own[kind][name]
        for kind, metrics in names.items()
        for metric, name in metrics.items()
        if name in own.get(kind, {})
    }
    score, errors = task_values(own, "small")
    return values | score, errors


def task_values(own: Details, side: str) -> tuple[dict[str, float], dict[str, float]]:
    """Accuracy and its standard error; side: "dense" or "small"."""
    if "tasks" not in own:
        return {}, {}
    accuracy, error = own["tasks"][side]
    return {"accuracy": accuracy}, {"accuracy": error}


def speeds(store: Store, runs: Sequence[lrcore.Run]) -> dict[str, Any]:
    """The latest speeds of the runs that have any, by id: {"dense", "small", "merged", "where"}. A
    run was measured in turns with its dense model; merged: with its factors multiplied out, where
    that was faster; where: on which device, in records that have it.
    """
    speeds_of = {run.id: store.runs.results(run.id, "speed") for run in runs}
    return {run_id: own[-1] for run_id, own in speeds_of.items() if own}
