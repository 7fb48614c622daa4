"""What the Spectra and Allocation tabs need of a model: nothing of it is kept on disk."""

from dataclasses import dataclass
from typing import Any, ClassVar

import lrcore

from ..job import Job, Reporter
from ..keys import factor_key
from ..store import Store
from ..survey import live_requests
from .measuring import load_dense


@dataclass(frozen=True)
class AnalyseJob(Job):
    """The analysis of a model, the factors of the recipe's method, and how fast the model runs:
    from that follows how long measuring would take.
    """

    kind: ClassVar[str] = "analyse"
    kept: ClassVar[bool] = False
    once: ClassVar[bool] = True
    yields: ClassVar[bool] = True

    recipe: lrcore.Recipe

    @property
    def title(self) -> str:
        return f"Analyse {self.recipe.model}"

    def serves(self, other: Job) -> bool:
        recipe = getattr(other, "recipe", None)
        return recipe is not None and factor_key(recipe) == factor_key(self.recipe)

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        load_dense(store, self.recipe, reporter)
        store.analysis(self.recipe, reporter.progress)
        store.factors(self.recipe, reporter.progress)
        if not self.recipe.offload:  # a pass would read the whole model from disk
            store.pace(self.recipe)
        return []


@dataclass(frozen=True)
class SurveyJob(Job):
    """The factors of every method, with what the recipe's policy measures, so that their
    allocations can be compared.

    Where the model is small enough, each is also measured at the recipe's budget, by its policy and
    with uniform ranks.
    """

    kind: ClassVar[str] = "survey"
    kept: ClassVar[bool] = False
    once: ClassVar[bool] = True
    yields: ClassVar[bool] = True

    recipe: lrcore.Recipe

    @property
    def title(self) -> str:
        return f"Every method on {self.recipe.model}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        dense = load_dense(store, self.recipe, reporter)
        for one in store.by_method(self.recipe):
            reporter.part = one.method
            store.factors(one, reporter.progress)
        reporter.part, requests = "", live_requests(store, self.recipe, reporter.id)
        for done, request in enumerate(requests):

            def step(*_: Any, done: int = done) -> None:
                reporter.progress("measure", done, len(requests))

            step()
            store.live.measure(request, dense, step)
        reporter.progress("measure", len(requests), len(requests))
        return []
