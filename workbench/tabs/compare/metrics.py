"""The figures of models beside each other: metrics down, the dense model and its runs across."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lrcore

from ... import text
from ...numbers import count, megabytes, perplexity, short, speed
from .details import Details, run_values, task_values
from .protocols import evaluation_of, protocol_of


@dataclass(frozen=True)
class Metric:
    """One row. best: min or max of the runs' values; None where neither is better."""

    label: str
    shown: Callable[[float], str]
    best: Callable[..., float] | None = min


METRICS = {
    "perplexity": Metric("Perplexity", perplexity),
    "excess": Metric("Excess loss (nats/token)", "{:+.4f}".format),
    "kl": Metric("KL to dense (nats/token)", "{:.4f}".format),
    "top1": Metric("Same likeliest token", "{:.1%}".format, max),
    "accuracy": Metric("Right endings of stories", "{:.1%}".format, max),
    "loss_qk": Metric("Loss from qk alone (nats/token)", "{:+.4f}".format),
    "loss_ov": Metric("Loss from ov alone (nats/token)", "{:+.4f}".format),
    "loss_mlp": Metric("Loss from mlp alone (nats/token)", "{:+.4f}".format),
    "error_scores": Metric("Local error of scores, mean", "{:.2%}".format),
    "error_ov": Metric("Local error of ov, mean", "{:.2%}".format),
    "error_mlp": Metric("Local error of mlp, mean", "{:.2%}".format),
    "error_residual": Metric("Error of the stream, mean", "{:.2%}".format),
    "bound_qk": Metric("Error of qk, share of its bound", "{:.2%}".format, None),
    "bound_ov": Metric("Error of ov, share of its bound", "{:.2%}".format, None),
    "bound_mlp": Metric("Error of mlp, share of its bound", "{:.2%}".format, None),
    "megabytes": Metric("Size", megabytes),
    "parameters": Metric("Parameters", count),
    "kv_bytes_per_token": Metric("KV cache per token", lambda value: f"{count(value)} B"),
    "flops_per_token": Metric("Compute per token", lambda value: f"{short(value)}FLOPs"),
    "prefill": Metric("Prefill speed", speed, max),
    "decode": Metric("Decode speed", speed, max),
    "merged_prefill": Metric("Prefill speed, factors merged", speed, max),
    "merged_decode": Metric("Decode speed, factors merged", speed, max),
}
MEASURED = ("perplexity", "excess", "kl", "top1")  # on a text
COSTS = ("megabytes", "parameters", "kv_bytes_per_token", "flops_per_token")
SPEEDS = ("prefill", "decode")


@dataclass(frozen=True)
class Figures:
    """One column: what is known of a model.

    values: by metric; errors: their standard errors, where known; note: what they were measured on.
    dense: values of the dense model on the same text, where they are not those of its own column.
    """

    title: str
    values: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    dense: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """The figures of a dense model and of its runs."""

    dense: Figures
    runs: tuple[Figures, ...]

    @property
    def rows(self) -> list[str]:
        """The metrics that some model has; perplexity always."""
        known = {name for one in (self.dense, *self.runs) for name in one.values}
        return [name for name in METRICS if name in known or name == "perplexity"]

    def is_best(self, name: str, one: Figures) -> bool:
        """Whether it is a run that has the best of the runs' values, where these differ and were
        measured on the same text.
        """
        best, having = METRICS[name].best, [run for run in self.runs if name in run.values]
        known = [run.values[name] for run in having]
        if best is None or len({*known}) < 2 or one is self.dense:
            return False
        if name in MEASURED and len({run.note for run in having}) > 1:
            return False
        return one.values.get(name) == best(known)


@dataclass(frozen=True)
class Known:
    """What was measured beside perplexity, by the id of the run.

    speeds: {"dense", "small", "merged"}, without the last where no factors were merged; details:
    as `details` gives them.
    """

    speeds: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Details] = field(default_factory=dict)


def tables(runs: Sequence[lrcore.Run], protocol: str | None, known: Known) -> list[Table]:
    """One table per dense model."""
    return [table(own, protocol, known) for own in by_base(runs)]


def by_base(runs: Sequence[lrcore.Run]) -> list[list[lrcore.Run]]:
    """The runs by the dense model that they were made of, in the order of the first of each."""
    groups: dict[tuple[str, str], list[lrcore.Run]] = {}
    for run in runs:
        base = "" if run.base is None else run.base.fingerprint
        groups.setdefault((run.recipe.model, base), []).append(run)
    return list(groups.values())


def table(runs: Sequence[lrcore.Run], protocol: str | None, known: Known) -> Table:
    """The dense model that these runs were made of, and them."""
    # what the dense model has under the protocol; a run that was not measured under it has less
    pairs = [(run, evaluation_of(run, protocol)) for run in runs]
    known_under = (pair for pair in pairs if under(*pair, protocol))
    measured = (pair for pair in pairs if pair[1])  # under another: the runs have different bases
    first = next(known_under, None) or next(measured, pairs[0])
    own = tuple(run_figures(*pair, known) for pair in pairs)
    return Table(dense_figures(*first, known, [run.id for run in runs]), own)


def under(run: lrcore.Run, evaluation: dict[str, Any] | None, protocol: str | None) -> bool:
    return evaluation is not None and protocol_of(run, evaluation) == protocol


def dense_figures(
    run: lrcore.Run, evaluation: dict[str, Any] | None, known: Known, ids: Sequence[str]
) -> Figures:
    """The dense model of a run. ids: of all its runs; what one of them knows of it holds."""
    summary = run.account.to_dict()
    values = {name: summary[f"dense_{name}"] for name in COSTS}
    measured = [known.speeds[one] for one in ids if one in known.speeds]
    values |= {name: measured[0]["dense"][name] for name in SPEEDS} if measured else {}
    # it has no factors: what runs with merged ones are held against
    merged = next((one["dense"] for one in measured if "merged" in one), {})
    values |= {f"merged_{name}": merged[name] for name in SPEEDS if name in merged}
    scored = (known.details[one] for one in ids if "tasks" in known.details.get(one, {}))
    score, errors = task_values(next(scored, {}), "dense")
    values |= numbers(evaluation, perplexity="dense_perplexity") | score
    return Figures(f"dense · {run.recipe.model}", values, errors, note(evaluation))


def run_figures(run: lrcore.Run, evaluation: dict[str, Any] | None, known: Known) -> Figures:
    summary, speed = run.account.to_dict(), known.speeds.get(run.id)
    values = {name: summary[name] for name in COSTS}
    values |= {name: speed["small"][name] for name in SPEEDS} if speed else {}
    merged = (speed or {}).get("merged", {})
    values |= {f"merged_{name}": merged[name] for name in SPEEDS if name in merged}
    values |= numbers(evaluation, perplexity="perplexity", excess="delta", kl="kl", top1="top1")
    more, errors = run_values(known.details.get(run.id, {}))
    error = (evaluation or {}).get("delta_error")
    if error is not None and "perplexity" in values:
        errors |= {"excess": error, "perplexity": values["perplexity"] * error}
    dense = numbers(evaluation, perplexity="dense_perplexity")
    return Figures(run.name, values | more, errors, note(evaluation), dense)


def numbers(evaluation: Mapping[str, Any] | None, **names: str) -> dict[str, float]:
    """{metric: value} of an evaluation, of those that are known."""
    known = {metric: (evaluation or {}).get(name) for metric, name in names.items()}
    return {metric: value for metric, value in known.items() if value is not None}


def note(evaluation: Mapping[str, Any] | None) -> str:
    """What was measured on, and whether of another dense model than the run's."""
    if not evaluation:
        return ""
    other = "" if evaluation.get("same_base", True) else f". {text.OTHER_BASE}"
    return text.protocol(dict(evaluation["protocol"])) + other
