"""Measuring kept runs against their dense models."""

import time
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import lrcore

from .. import numbers, run_text
from ..job import Job, Reporter
from ..keys import model_key
from ..store import Store


@dataclass(frozen=True)
class MeasureJob(Job):
    """Runs, and their dense models, evaluated under one protocol. runs: their ids."""

    kind: ClassVar[str] = "measure"

    runs: tuple[str, ...]
    evaluation: lrcore.EvaluationSettings

    @property
    def title(self) -> str:
        return f"Measure {numbers.several(len(self.runs), 'run')}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        for run_id in self.runs:
            run = store.runs.get(run_id)
            reporter.note(f"measure {run.name}")
            evaluate_run(store, run, self.evaluation, reporter)
        if len(self.runs) > 1:
            reporter.outcome = run_text.lowest(store.chosen_runs(self.runs), self.evaluation)
        return list(self.runs)


@dataclass(frozen=True)
class SpeedJob(Job):
    """Tokens per second of runs and of their dense model, taking turns, so that a busy machine
    slows all of them alike; of a run whose factors are slower than their matrices, also with these
    merged. runs: their ids.
    """

    kind: ClassVar[str] = "speed"

    runs: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Speed of {numbers.several(len(self.runs), 'run')}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        groups: dict[tuple, list[lrcore.Run]] = {}
        for run in (store.runs.get(run_id) for run_id in self.runs):
            groups.setdefault(model_key(run.recipe), []).append(run)
        for own in groups.values():
            dense = load_dense(store, own[0].recipe, reporter)
            self._measure(store, dense, own, reporter)
        return list(self.runs)

    def _measure(
        self, store: Store, dense: lrcore.LoadedModel, runs: list[lrcore.Run], reporter: Reporter
    ) -> None:
        small = [store.small(run) for run in runs]
        merged = [_merged(one, reporter) for one in small]
        models = [dense, *small, *(one for one in merged if one is not None)]
        first, *rest = lrcore.measure_speed(models, progress=reporter.progress)
        own, others = rest[: len(runs)], iter(rest[len(runs) :])
        where = {"device": str(dense.device), "dtype": dense.dtype}
        for run, speed, other in zip(runs, own, merged, strict=True):
            figures = {"dense": first.to_dict(), "small": speed.to_dict(), "where": where}
            if other is not None:
                figures["merged"] = next(others).to_dict()
            store.runs.add_result(run.id, "speed", where, figures)


def _merged(model: lrcore.LoadedModel, reporter: Reporter) -> lrcore.LoadedModel | None:
    """The model with factors merged where that is faster; None where nothing is, where memory does
    not suffice, or where layers are offloaded.
    """
    if model.offloaded:
        return None
    try:
        merged = lrcore.merge_factors(model, progress=reporter.progress)
    except lrcore.Shortage as error:
        reporter.note(str(error))
        return None
    return None if merged is model else merged


def load_dense(
    store: Store,
    recipe: lrcore.Recipe,
    reporter: Reporter,
    evaluation: lrcore.EvaluationSettings | None = None,
) -> lrcore.LoadedModel:
    """The dense model of a recipe, as a stage of its own.

    evaluation: how the job measures at its end. Raises InputError at once where that cannot be.
    """
    reporter.progress("load", 0, 1)
    model = store.dense(recipe)
    if evaluation is not None:
        lrcore.check_evaluation(model, evaluation.apart_from([recipe.data]))
    reporter.progress("load", 1, 1)
    return model


def evaluate_run(
    store: Store, run: lrcore.Run, settings: lrcore.EvaluationSettings, reporter: Reporter
) -> dict[str, Any]:
    """Evaluate a run and its dense model on the same tokens, and keep the result with the run.

    Returns its stored form: what `Evaluation.to_dict` gives of the run, with dense_perplexity, kl,
    top1, delta and delta_error (see `Comparison`), settings, same_base (whether the dense model is
    the one that the run was made of) and when.
    """
    dense = store.dense(run.recipe)
    both = lrcore.compare(
        dense,
        store.small(run),
        settings,
        progress=lambda _, done, total: reporter.progress("evaluate both", done, total),
    ).to_dict()
    result = both["small"] | {
        "dense_perplexity": both["dense"]["perplexity"],
        "kl": both["kl"],
        "top1": both["top1"],
        "delta": both["delta"],
        "delta_error": both["delta_error"],
        "same_base": run.base is not None and dense.fingerprint == run.base.fingerprint,
        "settings": asdict(settings),
        "when": time.time(),
    }
    store.runs.add_evaluation(run.id, result)
    reporter.outcome = run_text.outcome(run, result)
    return result
