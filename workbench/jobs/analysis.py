"""Jobs for the Spectra and Allocation tabs. Their results are in the object cache only."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import lrcore

from ..state.job import Job, Reporter
from ..state.job_record import JobRecord
from ..state.keys import analysis_recipe, factor_key, without_measurements
from ..state.store import Store
from ..state.survey import live_requests
from .measuring import load_dense


@dataclass(frozen=True)
class AnalyzeJob(Job):
    """Analysis of a model, factors of the method, and speed of the model, for time estimates."""

    kind: ClassVar[str] = "analyze"
    is_stored: ClassVar[bool] = False
    is_unique: ClassVar[bool] = True
    is_preemptible: ClassVar[bool] = True

    recipe: lrcore.Recipe

    @property
    def title(self) -> str:
        return f"Analyze {self.recipe.model}"

    def is_prerequisite_of(self, other: Job) -> bool:
        recipe = getattr(other, "recipe", None)
        return recipe is not None and factor_key(recipe) == factor_key(self.recipe)

    def prepares(self, recipe: lrcore.Recipe) -> bool:
        return self.recipe == analysis_recipe(recipe)

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        load_dense(store, self.recipe, reporter)
        store.analysis(self.recipe, reporter.progress)
        store.factors(self.recipe, reporter.progress)
        if not self.recipe.offload:  # a forward pass would read the full model from disk
            store.pace(self.recipe)
        return []


@dataclass(frozen=True)
class SurveyJob(Job):
    """Factors of all methods, with the evidence for the policy of the recipe.

    If the model is small, the plans of the policy and uniform ranks are measured as well.
    """

    kind: ClassVar[str] = "survey"
    is_stored: ClassVar[bool] = False
    is_unique: ClassVar[bool] = True
    is_preemptible: ClassVar[bool] = True

    recipe: lrcore.Recipe

    @property
    def title(self) -> str:
        return f"All methods on {self.recipe.model}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        dense = load_dense(store, self.recipe, reporter)
        for method_recipe in store.recipes_by_method(self.recipe):
            reporter.part = method_recipe.method
            store.factors(method_recipe, reporter.progress)
        reporter.part, requests = "", live_requests(store, self.recipe, reporter.id)
        for index, request in enumerate(requests):

            def report(*_: Any, index: int = index) -> None:
                reporter.progress("measure", index, len(requests))

            report()
            store.live.measure(request, dense, report)
        reporter.progress("measure", len(requests), len(requests))
        return []


def start_analysis(
    store: Store, recipe: lrcore.Recipe, browser: Hashable = None, measure: bool = True
) -> JobRecord | None:
    """Queue the missing analysis and factors of a recipe. Returns None if nothing is missing.

    browser: the requesting browser; its former jobs are canceled unless other browsers need them.
    measure: whether to make measurements for the policy, which may take minutes. If False, these
    are used only if they are on disk or a job makes them.
    """
    if not measure and not has_evidence(store, recipe):
        recipe = without_measurements(recipe)
    is_missing = store.peek_analysis(recipe) is None or store.peek_factors(recipe) is None
    record = store.jobs.submit(AnalyzeJob(analysis_recipe(recipe))) if is_missing else None
    if record is not None:
        record.browsers.add(browser)
    for waiting in store.jobs.waiting() if browser is not None else ():
        if waiting is not record and browser in waiting.browsers:
            waiting.browsers.discard(browser)
            if not waiting.browsers:
                store.jobs.cancel(waiting.id)
    return record


def has_evidence(store: Store, recipe: lrcore.Recipe) -> bool:
    """Return True if factors and evidence of a recipe are cached, on disk, or being computed."""
    missing = store.missing_evidence(recipe)
    if missing is None:
        return store.peek_factors(recipe) is not None
    return missing.is_running or missing.seconds == 0


def start_survey(store: Store, recipe: lrcore.Recipe) -> JobRecord:
    """Queue the factors of all methods."""
    return store.jobs.submit(SurveyJob(recipe.with_(rank_overrides={})))
