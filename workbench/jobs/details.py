"""Where kept runs lose what they lose: by component, by layer, and on a task."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import lrcore

from .. import numbers
from ..job import Job, Reporter
from ..keys import unmeasured
from ..store import Store
from .measuring import load_dense

TASK = lrcore.BUILTIN_TASKS[0]


@dataclass(frozen=True)
class DetailsJob(Job):
    """Component contributions, local errors, the score of a task, and error bounds where the
    method's paper states some, of runs and their dense models.

    runs: their ids; items: how many of the task are scored.
    """

    kind: ClassVar[str] = "details"

    runs: tuple[str, ...]
    evaluation: lrcore.EvaluationSettings
    items: int = 200

    @property
    def title(self) -> str:
        return f"Details of {numbers.several(len(self.runs), 'run')}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        for run_id in self.runs:
            run = store.runs.get(run_id)
            reporter.note(f"details of {run.name}")
            pair = load_dense(store, run.recipe, reporter), store.small(run)
            for measure in (contributions, local_errors, task_scores):
                try:
                    kind, protocol, figures = measure(*pair, self, reporter)
                except lrcore.InputError as error:  # it has not the components that this is about
                    reporter.note(f"{run.name}: {error}")
                else:
                    store.runs.add_result(run.id, kind, protocol, figures)
            if bounded(pair[1]):
                store.runs.add_result(run.id, *error_bounds(store, run.recipe, pair[1], reporter))
        return list(self.runs)


Result = tuple[str, dict[str, Any], dict[str, Any]]  # kind, protocol, figures


def contributions(
    dense: lrcore.LoadedModel, small: lrcore.LoadedModel, job: DetailsJob, reporter: Reporter
) -> Result:
    """The loss from compressing each component alone, by component."""
    found = lrcore.contributions(dense, small, job.evaluation, progress=reporter.progress)
    figures = {row["parts"]: row["delta_nll"] for row in found.rows}
    return "contributions", found.protocol, figures


def local_errors(
    dense: lrcore.LoadedModel, small: lrcore.LoadedModel, job: DetailsJob, reporter: Reporter
) -> Result:
    """The relative squared error of each component, by component: its mean over the layers."""
    found = lrcore.local_errors(dense, small, job.evaluation, progress=reporter.progress)
    figures = {
        name: sum(values) / len(values)
        for name in dict.fromkeys(name for own in found.errors for name in own)
        if (values := [own[name] for own in found.errors if name in own])
    }
    return "local errors", found.protocol, figures


def bounded(small: lrcore.LoadedModel) -> bool:
    """Whether its weights are as a method with bounds of its errors has made them."""
    return small.recipe is not None and (
        small.recipe.method == "modegpt" and isinstance(small.history[-1], lrcore.Compressed)
    )


def error_bounds(
    store: Store, recipe: lrcore.Recipe, small: lrcore.LoadedModel, reporter: Reporter
) -> Result:
    """Errors as shares of the bounds of MoDeGPT's propositions, by component: the mean over the
    layers that have a bound above 0.
    """
    plain = unmeasured(recipe)
    factors = store.factors(plain, reporter.progress)
    ranks = {(one.layer, one.component): one.rank for one in small.ranks}
    plan = replace(lrcore.allocate(factors, plain), ranks=ranks)
    rows = lrcore.bounds(store.dense(recipe), factors, plan, reporter.progress)
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row["bound"]:
            shares.setdefault(row["component"], []).append(row["error"] / row["bound"])
    figures = {name: sum(own) / len(own) for name, own in shares.items()}
    return "bounds", factors.calibration.protocol, figures


def task_scores(
    dense: lrcore.LoadedModel, small: lrcore.LoadedModel, job: DetailsJob, reporter: Reporter
) -> Result:
    """The accuracy of both models on a task of multiple choice, with its standard error."""
    scores = {
        name: lrcore.score_choices(model, TASK, job.items, progress=reporter.progress)
        for name, model in (("dense", dense), ("small", small))
    }
    figures = {name: [one.accuracy, one.error] for name, one in scores.items()}
    return "tasks", scores["small"].protocol, figures | {"task": TASK}
