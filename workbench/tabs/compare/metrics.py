"""Metrics of the compared models: rows are metrics, columns are models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lrcore.runs.runs import Run

from ... import words
from ...base.numbers import count, megabytes, perplexity, speed, with_prefix
from ...state.store import Store
from .chosen_runs import evaluation_of, protocol_of


@dataclass(frozen=True)
class Metric:
    """A row of the comparison.

    best: min or max of the runs' values; None if neither is better.
    """

    label: str
    as_text: Callable[[float], str]
    best: Callable[..., float] | None = min


METRICS = {
    "perplexity": Metric("Perplexity", perplexity),
    "excess": Metric("Excess loss (nats/token)", "{:+.4f}".format),
    "kl": Metric("KL to dense (nats/token)", "{:.4f}".format),
    "top1": Metric("Top-1 agreement", "{:.1%}".format, max),
    "accuracy": Metric("Accuracy on story endings", "{:.1%}".format, max),
    "loss_qk": Metric("Loss from qk alone (nats/token)", "{:+.4f}".format),
    "loss_ov": Metric("Loss from ov alone (nats/token)", "{:+.4f}".format),
    "loss_mlp": Metric("Loss from mlp alone (nats/token)", "{:+.4f}".format),
    "error_scores": Metric("Local error of attention scores, mean", "{:.2%}".format),
    "error_ov": Metric("Local error of ov, mean", "{:.2%}".format),
    "error_mlp": Metric("Local error of mlp, mean", "{:.2%}".format),
    "error_residual": Metric("Error of the residual stream, mean", "{:.2%}".format),
    "bound_qk": Metric("Error of qk, fraction of its bound", "{:.2%}".format, None),
    "bound_ov": Metric("Error of ov, fraction of its bound", "{:.2%}".format, None),
    "bound_mlp": Metric("Error of mlp, fraction of its bound", "{:.2%}".format, None),
    "megabytes": Metric("Size", megabytes),
    "parameters": Metric("Parameters", count),
    "kv_bytes_per_token": Metric("KV cache per token", lambda value: f"{count(value)} B"),
    "flops_per_token": Metric("Compute per token", lambda value: f"{with_prefix(value)}FLOPs"),
    "prefill": Metric("Prefill speed", speed, max),
    "decode": Metric("Decode speed", speed, max),
    "merged_prefill": Metric("Prefill speed, factors merged", speed, max),
    "merged_decode": Metric("Decode speed, factors merged", speed, max),
}
MEASURED = ("perplexity", "excess", "kl", "top1")  # on a text
COSTS = ("megabytes", "parameters", "kv_bytes_per_token", "flops_per_token")
SPEEDS = ("prefill", "decode")
# Metrics and their names in the results of runs, by kind of result
DETAILS = {
    "contributions": {"loss_qk": "qk", "loss_ov": "ov", "loss_mlp": "mlp"},
    "local errors": {
        "error_scores": "scores",
        "error_ov": "ov",
        "error_mlp": "mlp",
        "error_residual": "residual",
    },
    "bounds": {"bound_qk": "qk", "bound_ov": "ov", "bound_mlp": "mlp"},
}
TASKS = "tasks"
Details = Mapping[str, Mapping[str, Any]]  # kind of result -> values


@dataclass(frozen=True)
class Column:
    """The metrics of a model.

    values: by metric. errors: standard errors, if known. note: protocol of the perplexity. dense:
    values of the dense model in the same measurement, which may differ from those in its column.
    """

    title: str
    values: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    dense: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A dense model and the runs made from it."""

    dense: Column
    runs: tuple[Column, ...]

    @property
    def rows(self) -> list[str]:
        """The metrics that any model has, and perplexity."""
        names = {name for column in (self.dense, *self.runs) for name in column.values}
        return [name for name in METRICS if name in names or name == "perplexity"]

    def is_best(self, name: str, column: Column) -> bool:
        """Return whether a run has the best value of a metric.

        No value is the best if all are equal, or if they were measured on different texts.
        """
        best, runs = METRICS[name].best, [run for run in self.runs if name in run.values]
        values = [run.values[name] for run in runs]
        if best is None or len({*values}) < 2 or column is self.dense:
            return False
        if name in MEASURED and len({run.note for run in runs}) > 1:
            return False
        return column.values.get(name) == best(values)


@dataclass(frozen=True)
class Results:
    """Results of runs other than perplexity, by the id of the run: see `speeds` and `details`."""

    speeds: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Details] = field(default_factory=dict)


def results(store: Store, runs: Sequence[Run]) -> Results:
    """Return the latest results of runs."""
    return Results(speeds(store, runs), details(store, runs))


def speeds(store: Store, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the latest speeds of runs, by id: {"dense", "small", "merged", "where"}.

    Each run was measured alternating with its dense model ("dense"). "small": the run. "merged":
    the run with factors multiplied out, if they are slower than dense matrices. "where": the
    device; missing in old records.
    """
    records = {run.id: store.runs.results(run.id, "speed") for run in runs}
    return {run_id: rows[-1] for run_id, rows in records.items() if rows}


def details(store: Store, runs: Sequence[Run]) -> dict[str, Details]:
    """Return the latest results of each kind, by the id of the run."""
    kinds = (*DETAILS, TASKS)
    records = {run.id: {kind: store.runs.results(run.id, kind) for kind in kinds} for run in runs}
    return {
        run_id: {kind: rows[-1] for kind, rows in by_kind.items() if rows}
        for run_id, by_kind in records.items()
    }


def tables(runs: Sequence[Run], protocol: str | None, other_results: Results) -> list[Table]:
    """Return a table for each dense model. other_results: of the runs, see `results`."""
    return [table(group, protocol, other_results) for group in group_by_base(runs)]


def group_by_base(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs by their dense model, in the order of the first run of each."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        base = "" if run.base is None else run.base.fingerprint
        groups.setdefault((run.recipe.model, base), []).append(run)
    return list(groups.values())


def table(runs: Sequence[Run], protocol: str | None, other_results: Results) -> Table:
    """Return the table of runs with the same dense model."""
    # the dense model's column needs a run with this protocol, or at least with an evaluation
    pairs = [(run, evaluation_of(run, protocol)) for run in runs]
    with_protocol = (pair for pair in pairs if has_protocol(*pair, protocol))
    evaluated = (pair for pair in pairs if pair[1])
    first = next(with_protocol, None) or next(evaluated, pairs[0])
    columns = tuple(run_column(*pair, other_results) for pair in pairs)
    dense = dense_column(*first, other_results, [run.id for run in runs])
    return Table(dense, columns)


def has_protocol(run: Run, evaluation: dict[str, Any] | None, protocol: str | None) -> bool:
    """Return whether an evaluation has a protocol."""
    return evaluation is not None and protocol_of(run, evaluation) == protocol


def dense_column(
    run: Run, evaluation: dict[str, Any] | None, other_results: Results, ids: Sequence[str]
) -> Column:
    """Return the column of the dense model of a run. ids: of all runs with this dense model."""
    summary = run.account.to_dict()
    values = {name: summary[f"dense_{name}"] for name in COSTS}
    measured = [other_results.speeds[run_id] for run_id in ids if run_id in other_results.speeds]
    values |= {name: measured[0]["dense"][name] for name in SPEEDS} if measured else {}
    # The dense model has no factors. Runs with merged factors are compared with these speeds.
    merged: dict[str, Any] = next((row["dense"] for row in measured if "merged" in row), {})
    values |= {f"merged_{name}": merged[name] for name in SPEEDS if name in merged}
    with_tasks = (
        other_results.details[run_id]
        for run_id in ids
        if TASKS in other_results.details.get(run_id, {})
    )
    score, errors = task_values(next(with_tasks, {}), "dense")
    values |= present_values(evaluation, perplexity="dense_perplexity") | score
    return Column(f"dense · {run.recipe.model}", values, errors, protocol_note(evaluation))


def run_column(run: Run, evaluation: dict[str, Any] | None, other_results: Results) -> Column:
    """Return the column of a run."""
    summary, run_speeds = run.account.to_dict(), other_results.speeds.get(run.id)
    values = {name: summary[name] for name in COSTS}
    values |= {name: run_speeds["small"][name] for name in SPEEDS} if run_speeds else {}
    merged = (run_speeds or {}).get("merged", {})
    values |= {f"merged_{name}": merged[name] for name in SPEEDS if name in merged}
    names = {"perplexity": "perplexity", "excess": "delta", "kl": "kl", "top1": "top1"}
    values |= present_values(evaluation, **names)
    detail_values, errors = run_values(other_results.details.get(run.id, {}))
    error = (evaluation or {}).get("delta_error")
    if error is not None and "perplexity" in values:
        errors |= {"excess": error, "perplexity": values["perplexity"] * error}
    dense = present_values(evaluation, perplexity="dense_perplexity")
    # a speed compares with that of the dense model in the same measurement
    dense |= {name: run_speeds["dense"][name] for name in SPEEDS} if run_speeds else {}
    return Column(run.name, values | detail_values, errors, protocol_note(evaluation), dense)


def run_values(by_kind: Details) -> tuple[dict[str, float], dict[str, float]]:
    """Return the detailed results of a run by metric, and their standard errors."""
    values = {
        metric: by_kind[kind][name]
        for kind, metrics in DETAILS.items()
        for metric, name in metrics.items()
        if name in by_kind.get(kind, {})
    }
    score, errors = task_values(by_kind, "small")
    return values | score, errors


def task_values(by_kind: Details, model: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the accuracy and its standard error. model: "dense" or "small"."""
    if TASKS not in by_kind:
        return {}, {}
    accuracy, error = by_kind[TASKS][model]
    return {"accuracy": accuracy}, {"accuracy": error}


def present_values(evaluation: Mapping[str, Any] | None, **names: str) -> dict[str, float]:
    """Return {metric: value} of an evaluation for the values that it has."""
    values = {metric: (evaluation or {}).get(name) for metric, name in names.items()}
    return {metric: value for metric, value in values.items() if value is not None}


def protocol_note(evaluation: Mapping[str, Any] | None) -> str:
    """Return the protocol, with a warning if the dense model has changed since."""
    if not evaluation:
        return ""
    is_same_base = evaluation.get("same_base", True)
    warning = "" if is_same_base else f". {words.compare_and_runs.OTHER_BASE}"
    return words.compare_and_runs.protocol(evaluation["protocol"]) + warning
