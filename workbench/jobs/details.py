"""Job for details of runs: losses by component, local errors, accuracy and error bounds."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import lrcore
from lrcore.compression.pipeline.model_bounds import plan_bounds
from lrcore.data.questions import BUILTIN_TASKS
from lrcore.evaluation.contributions import contributions as lrcore_contributions
from lrcore.evaluation.local_errors import local_errors as lrcore_local_errors
from lrcore.evaluation.tasks import TaskResult
from lrcore.recipes.history import Compressed

from ..base import numbers
from ..state.job import Job, Reporter
from ..state.keys import model_key, without_measurements
from ..state.store import Store
from .measuring import load_dense

TASK = BUILTIN_TASKS[0]
Result = tuple[str, dict[str, Any], dict[str, Any]]  # kind, protocol, figures


@dataclass(frozen=True)
class DetailsJob(Job):
    """Contributions of components, local errors, accuracy on a task, and error bounds if the paper
    of the method states bounds.

    runs: ids. items: number of task items.
    """

    kind: ClassVar[str] = "details"

    runs: tuple[str, ...]
    evaluation: lrcore.EvaluationSettings
    items: int = 100

    @property
    def title(self) -> str:
        return f"Details of {numbers.plural(len(self.runs), 'run')}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        for run_id in self.runs:
            run = store.runs.get(run_id)
            reporter.add_log(f"details of {run.name}")
            pair = load_dense(store, run.recipe, reporter), store.run_model(run)
            scores = partial(task_scores, store, run.recipe)
            for measure in (contributions, local_errors, scores):
                try:
                    kind, protocol, figures = measure(*pair, self, reporter)
                except lrcore.InputError as error:  # such as missing components
                    reporter.add_log(f"{run.name}: {error}")
                else:
                    store.runs.add_result(run.id, kind, protocol, figures)
            if has_bounds(pair[1]):
                store.runs.add_result(run.id, *error_bounds(store, run.recipe, pair[1], reporter))
        return list(self.runs)


def contributions(
    dense: lrcore.LoadedModel, small: lrcore.LoadedModel, job: DetailsJob, reporter: Reporter
) -> Result:
    """Return the increase in loss for each component compressed alone."""
    result = lrcore_contributions(dense, small, job.evaluation, progress=reporter.progress)
    figures = {row["parts"]: row["delta_nll"] for row in result.rows}
    return "contributions", result.protocol, figures


def local_errors(
    dense: lrcore.LoadedModel, small: lrcore.LoadedModel, job: DetailsJob, reporter: Reporter
) -> Result:
    """Return the mean relative squared error of each component over the layers."""
    result = lrcore_local_errors(dense, small, job.evaluation, progress=reporter.progress)
    figures = {
        name: sum(values) / len(values)
        for name in dict.fromkeys(name for errors in result.errors for name in errors)
        if (values := [errors[name] for errors in result.errors if name in errors])
    }
    return "local errors", result.protocol, figures


def has_bounds(small: lrcore.LoadedModel) -> bool:
    """Return True if the weights are from a method with error bounds, without further steps."""
    return small.recipe is not None and (
        small.recipe.method == "modegpt" and isinstance(small.history[-1], Compressed)
    )


def error_bounds(
    store: Store, recipe: lrcore.Recipe, small: lrcore.LoadedModel, reporter: Reporter
) -> Result:
    """Return the ratio of errors to the bounds of MoDeGPT's propositions, by component.

    It is the mean over the layers with a bound above 0.
    """
    plain = without_measurements(recipe)
    factors = store.factors(plain, reporter.progress)
    ranks = {(row.layer, row.component): row.rank for row in small.ranks}
    plan = replace(lrcore.allocate(factors, plain), ranks=ranks)
    rows = plan_bounds(store.dense(recipe), factors, plan, reporter.progress)
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["bound"]:
            ratios.setdefault(row["component"], []).append(row["error"] / row["bound"])
    figures = {name: sum(values) / len(values) for name, values in ratios.items()}
    return "bounds", factors.calibration.protocol, figures


def task_scores(
    store: Store,
    recipe: lrcore.Recipe,
    dense: lrcore.LoadedModel,
    small: lrcore.LoadedModel,
    job: DetailsJob,
    reporter: Reporter,
) -> Result:
    """Return the accuracy of both models on a multiple-choice task, with standard errors.

    The scores of the dense model, which `recipe` names, are computed once for all its runs.
    """

    def score(model: lrcore.LoadedModel) -> TaskResult:
        return lrcore.score_choices(model, TASK, job.items, progress=reporter.progress)

    key = (*model_key(recipe), job.items)
    dense_score = store.objects.get("task scores", key, lambda: score(dense))
    scores = {"dense": dense_score, "small": score(small)}
    figures = {name: [score.accuracy, score.error] for name, score in scores.items()}
    return "tasks", scores["small"].protocol, figures | {"task": TASK}
