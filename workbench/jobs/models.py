"""Jobs that compress a dense model or change a run. Their result is a new run."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import lrcore
from lrcore.recipes.history import Healed, LayersDropped, SharedBases, Sliced
from lrcore.runs.runs import Run
from lrcore.system.errors import Cancelled

from ..base import numbers
from ..state.job import Job, Reporter
from ..state.store import Store
from ..views import run_text
from .measuring import evaluate_run, load_dense


@dataclass(frozen=True)
class CompressJob(Job):
    """Compression by a recipe. The run is evaluated unless `evaluation` is None.

    name: of the run; "" for a name generated from the recipe.
    """

    kind: ClassVar[str] = "compress"

    recipe: lrcore.Recipe
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        title = f"{self.recipe.method} {self.recipe.ratio:.0%} on {self.recipe.model}"
        return titled(self.name, title)

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        recipe = self.recipe
        dense = load_dense(store, recipe, reporter, self.evaluation)
        small = compressed(store, reporter, recipe, dense)
        log_notices(reporter, recipe, small)
        name = self.name or run_name(recipe)
        return save_and_evaluate(store, reporter, recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class PruneLayersJob(Job):
    """Removal of layers. layers: number of layers; by: criterion, see `lrcore.prune_layers`."""

    kind: ClassVar[str] = "prune_layers"

    recipe: lrcore.Recipe
    layers: int
    by: str
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        title = f"Drop {numbers.plural(self.layers, 'layer')} of {self.recipe.model}"
        return titled(self.name, title)

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        dense = load_dense(store, self.recipe, reporter, self.evaluation)
        small = lrcore.prune_layers(
            dense, self.recipe, self.layers, self.by, progress=reporter.progress
        )
        step = small.step(LayersDropped)
        reporter.add_log(run_text.pruned(small.history))
        action = f"without {len(step.gone)} of {step.of} layers, {step.by}"
        name = self.name or name_with_model(action, self.recipe)
        return save_and_evaluate(store, reporter, self.recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class SliceJob(Job):
    """Reduction of the width of the residual stream. rotations: see `lrcore.slice_hidden`."""

    kind: ClassVar[str] = "slice"

    recipe: lrcore.Recipe
    rotations: str
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        title = f"Slice {self.recipe.model}, remove {self.recipe.ratio:.0%}"
        return titled(self.name, title)

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        recipe = self.recipe
        dense = load_dense(store, recipe, reporter, self.evaluation)
        small = lrcore.slice_hidden(
            dense, recipe, self.rotations, recipe.rank_multiple, progress=reporter.progress
        )
        step = small.step(Sliced)
        reporter.add_log(run_text.sliced(small.history))
        action = f"sliced to {step.width} of {step.of}, {step.rotations}"
        name = self.name or name_with_model(action, recipe)
        return save_and_evaluate(store, reporter, recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class ShareJob(Job):
    """Shared bases of neighboring layers. group: layers per basis, see `lrcore.share_bases`."""

    kind: ClassVar[str] = "share"

    recipe: lrcore.Recipe
    group: int
    name: str = ""
    evaluation: lrcore.EvaluationSettings | None = None

    @property
    def title(self) -> str:
        title = f"Share a basis in {self.recipe.model}, remove {self.recipe.ratio:.0%}"
        return titled(self.name, title)

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        recipe = self.recipe
        dense = load_dense(store, recipe, reporter, self.evaluation)
        small = lrcore.share_bases(dense, recipe, self.group, progress=reporter.progress)
        reporter.add_log(run_text.shared(small.step(SharedBases)))
        action = f"shared by {self.group} {recipe.ratio:.0%}"
        name = self.name or name_with_model(action, recipe)
        return save_and_evaluate(store, reporter, recipe, name, small, self.evaluation)


@dataclass(frozen=True)
class QuantizeJob(Job):
    """Quantization of a run to 2 to 8 bits. name: current name of the run."""

    kind: ClassVar[str] = "quantize"
    is_unique: ClassVar[bool] = True

    run_id: str
    bits: int
    name: str = ""

    @property
    def title(self) -> str:
        return f"Quantize {self.name or self.run_id} to {self.bits} bit"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        run = store.runs.get(self.run_id)
        small = lrcore.quantize(store.run_model(run), self.bits, progress=reporter.progress)
        return [save_derived_run(store, reporter, run, f"{run.name} · {self.bits} bit", small).id]


@dataclass(frozen=True)
class HealJob(Job):
    """Training of a run against its dense model. name: current name of the run.

    The state of the training is in the folder of the run, so that a restarted job continues.
    """

    kind: ClassVar[str] = "heal"
    is_unique: ClassVar[bool] = True

    run_id: str
    healing: lrcore.Healing
    name: str = ""

    @property
    def title(self) -> str:
        return f"Heal {self.name or self.run_id}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        run = store.runs.get(self.run_id)
        teacher = load_dense(store, run.recipe, reporter)
        state = run.folder / "healing.safetensors"
        small = lrcore.heal(
            store.run_model(run),
            self.healing,
            teacher=teacher,
            state=state,
            progress=reporter.progress,
        )
        reporter.curve = list(small.step(Healed).cross_entropy)
        healed = save_derived_run(store, reporter, run, f"{run.name} · healed", small)
        state.unlink(missing_ok=True)
        return [healed.id]


def titled(name: str, title: str) -> str:
    """Return the title of a job, after the name of its run if there is one."""
    return f"{name}: {title}" if name else title


def run_name(recipe: lrcore.Recipe) -> str:
    """Return the default name of a run."""
    return name_with_model(f"{recipe.method} {recipe.ratio:.0%} {recipe.policy}", recipe)


def name_with_model(action: str, recipe: lrcore.Recipe) -> str:
    """Return an action with the name of the model, without the folders of its path."""
    return f"{action} · {recipe.model.rstrip('/').rpartition('/')[2]}"


def unused_name(store: Store, name: str) -> str:
    """Return a name, with a number if a run has this name already."""
    existing = {run.name for run in store.runs.all()}
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return next(text for text in itertools.chain([name], numbered) if text not in existing)


def compressed(
    store: Store, reporter: Reporter, recipe: lrcore.Recipe, dense: lrcore.LoadedModel
) -> lrcore.LoadedModel:
    """Return the compressed model of a recipe."""
    factors = store.factors(recipe, reporter.progress)
    return lrcore.compress(dense, recipe, factors, progress=reporter.progress)


def log_notices(reporter: Reporter, recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> None:
    """Log if uniform ranks were used instead, and if the calibration had few tokens."""
    if notice := model.account.planned.uniform_notice(recipe.policy):
        reporter.add_log(notice)
    if few_tokens := model.history[-1].about_calibration:
        reporter.add_log(few_tokens)


def save_run(
    store: Store,
    reporter: Reporter,
    recipe: lrcore.Recipe,
    name: str,
    model: lrcore.LoadedModel,
) -> Run:
    """Save a model as a run, as a separate stage of the job.

    The name gets a number if a run has this name already.
    """
    reporter.progress("save", 0, 1)
    run = store.save_run(unused_name(store, name), recipe, model)
    reporter.add_log(f"saved as {run.name} ({run.id})")
    reporter.outcome = run_text.outcome(run, None)
    return run


def save_and_evaluate(
    store: Store,
    reporter: Reporter,
    recipe: lrcore.Recipe,
    name: str,
    model: lrcore.LoadedModel,
    evaluation: lrcore.EvaluationSettings | None,
) -> list[str]:
    """Save a model as a run, evaluate it unless `evaluation` is None, and return its id."""
    run = save_run(store, reporter, recipe, name, model)
    if evaluation is not None:
        with deleted_if_canceled(store, run):
            evaluate_run(store, run, evaluation, reporter)
    return [run.id]


@contextmanager
def deleted_if_canceled(store: Store, run: Run) -> Iterator[None]:
    """Delete a run if the job is canceled before the run is measured.

    Otherwise the job, started again, would make a second run of the same name.
    """
    try:
        yield
    except Cancelled:
        store.delete(run.id)
        raise


def save_derived_run(
    store: Store, reporter: Reporter, run: Run, name: str, model: lrcore.LoadedModel
) -> Run:
    """Save a model derived from a run, and evaluate it with the settings of that run."""
    derived = save_run(store, reporter, run.recipe, name, model)
    with deleted_if_canceled(store, derived):
        for evaluation in run.evaluations:
            if "settings" in evaluation:
                settings = lrcore.EvaluationSettings(**evaluation["settings"])
                evaluate_run(store, derived, settings, reporter)
    return derived
