"""Jobs that make a smaller model of a dense one: the result is a run."""

from dataclasses import dataclass
from typing import ClassVar

import lrcore

from .. import numbers, run_text, sharing_text, text
from ..job import Job, Reporter
from ..store import Store
from .measuring import evaluate_run, load_dense


@dataclass(frozen=True)
class CompressJob(Job):
    """One run by a recipe; measured against the dense model unless evaluation is None.

    name: of the run, made from the recipe where it is empty.
    """

    kind: ClassVar[str] = "compress"

    recipe: lrcore.Recipe
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        return f"{self.recipe.method} {self.recipe.ratio:.0%} on {self.recipe.model}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        recipe = self.recipe
        dense = load_dense(store, recipe, reporter, self.evaluation)
        factors = store.factors(recipe, reporter.progress)
        small = lrcore.compress(dense, recipe, factors, progress=reporter.progress)
        if not_given := small.account.planned.not_given(recipe.policy):
            reporter.note(not_given)
        if about_experts := small.history[-1].about_experts:
            reporter.note(about_experts)
        name = self.name or run_name(recipe)
        return keep_measured(store, reporter, recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class ShortenJob(Job):
    """A run without some of the model's layers. layers: how many go; by: see `lrcore.shorten`."""

    kind: ClassVar[str] = "shorten"

    recipe: lrcore.Recipe
    layers: int
    by: str
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        return f"Drop {numbers.several(self.layers, 'layer')} of {self.recipe.model}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        dense = load_dense(store, self.recipe, reporter, self.evaluation)
        small = lrcore.shorten(dense, self.recipe, self.layers, self.by, progress=reporter.progress)
        step = small.step(lrcore.Shortened)
        reporter.note(text.shortened(small.history))
        what = f"without {len(step.gone)} of {step.of} layers, {step.by}"
        name = self.name or of_base(what, self.recipe)
        return keep_measured(store, reporter, self.recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class SliceJob(Job):
    """A run with a narrower residual stream. rotations: see `lrcore.slice_hidden`."""

    kind: ClassVar[str] = "slice"

    recipe: lrcore.Recipe
    rotations: str
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        return f"Slice {self.recipe.model}, remove {self.recipe.ratio:.0%}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        recipe = self.recipe
        dense = load_dense(store, recipe, reporter, self.evaluation)
        small = lrcore.slice_hidden(
            dense, recipe, self.rotations, recipe.multiple, progress=reporter.progress
        )
        step = small.step(lrcore.Sliced)
        reporter.note(text.sliced(small.history))
        name = self.name or of_base(
            f"sliced to {step.width} of {step.of}, {step.rotations}", recipe
        )
        return keep_measured(store, reporter, recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class ShareJob(Job):
    """A run whose neighbouring layers share a basis. group: see `lrcore.share_bases`."""

    kind: ClassVar[str] = "share"

    recipe: lrcore.Recipe
    group: int
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        return f"Share a basis in {self.recipe.model}, remove {self.recipe.ratio:.0%}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        recipe = self.recipe
        dense = load_dense(store, recipe, reporter, self.evaluation)
        small = lrcore.share_bases(dense, recipe, self.group, progress=reporter.progress)
        reporter.note(sharing_text.shared(small.step(lrcore.SharedBases)))
        name = self.name or of_base(f"shared by {self.group} {recipe.ratio:.0%}", recipe)
        return keep_measured(store, reporter, recipe, name, small, self.evaluation)


def run_name(recipe: lrcore.Recipe) -> str:
    """What a run is called where nobody named it."""
    return of_base(f"{recipe.method} {recipe.ratio:.0%} {recipe.policy}", recipe)


def of_base(what: str, recipe: lrcore.Recipe) -> str:
    """What was done, and to which model: its name without the folders before it."""
    return f"{what} · {recipe.model.rstrip('/').rpartition('/')[2]}"


def keep_run(
    store: Store,
    reporter: Reporter,
    recipe: lrcore.Recipe,
    name: str,
    model: lrcore.LoadedModel,
) -> lrcore.Run:
    """Keep a model as a run, as a stage of its own."""
    reporter.progress("save", 0, 1)
    run = store.keep(name, recipe, model)
    reporter.note(f"kept as {run.name} ({run.id})")
    reporter.outcome = run_text.outcome(run, None)
    return run


def keep_measured(
    store: Store,
    reporter: Reporter,
    recipe: lrcore.Recipe,
    name: str,
    model: lrcore.LoadedModel,
    evaluation: lrcore.EvaluationSettings | None,
) -> list[str]:
    """Keep a model as a run, measured against its dense model unless evaluation is None; its id is
    the result of the job.
    """
    run = keep_run(store, reporter, recipe, name, model)
    if evaluation is not None:
        evaluate_run(store, run, evaluation, reporter)
    return [run.id]
