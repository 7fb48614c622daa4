"""Jobs that compare runs with their dense models: perplexity and speed."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import lrcore
from lrcore.evaluation.evaluate import check_evaluation
from lrcore.models.hub_size import hub_size
from lrcore.models.load import resolve_device
from lrcore.runs.runs import Run
from lrcore.system.errors import ResourceError
from lrcore.system.hardware import hardware
from lrcore.system.memory import raise_unless_free

from .. import words
from ..base import numbers
from ..state.job import Job, Reporter
from ..state.keys import model_key
from ..state.store import Store
from ..views import run_text


@dataclass(frozen=True)
class MeasureJob(Job):
    """Evaluation of runs and of their dense models by one protocol. runs: ids."""

    kind: ClassVar[str] = "measure"

    runs: tuple[str, ...]
    evaluation: lrcore.EvaluationSettings

    @property
    def title(self) -> str:
        return f"Measure {numbers.plural(len(self.runs), 'run')}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        for run_id in self.runs:
            run = store.runs.get(run_id)
            reporter.add_log(f"measure {run.name}")
            evaluate_run(store, run, self.evaluation, reporter)
        if len(self.runs) > 1:
            reporter.outcome = run_text.lowest(store.runs_by_id(self.runs), self.evaluation)
        return list(self.runs)


@dataclass(frozen=True)
class SpeedJob(Job):
    """Tokens per second of runs and of their dense models. runs: ids.

    Models alternate, so that load on the machine affects them equally. Runs with factors that are
    slower than the dense matrices are also measured with merged factors.
    """

    kind: ClassVar[str] = "speed"

    runs: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"Speed of {numbers.plural(len(self.runs), 'run')}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        groups: dict[tuple, list[Run]] = {}
        for run in (store.runs.get(run_id) for run_id in self.runs):
            groups.setdefault(model_key(run.recipe), []).append(run)
        for group in groups.values():
            dense = load_dense(store, group[0].recipe, reporter)
            measure_speeds(store, dense, group, reporter)
        return list(self.runs)


def measure_speeds(
    store: Store, dense: lrcore.LoadedModel, runs: Sequence[Run], reporter: Reporter
) -> None:
    """Measure and store the speeds of runs with the same dense model."""
    small = [store.run_model(run) for run in runs]
    merged = [_merge(model, reporter) for model in small]
    models = [dense, *small, *(model for model in merged if model is not None)]
    dense_speed, *speeds = lrcore.measure_speed(models, progress=reporter.progress)
    small_speeds, merged_speeds = speeds[: len(runs)], iter(speeds[len(runs) :])
    hardware = {"device": str(dense.device), "dtype": dense.dtype}
    for run, speed, merged_model in zip(runs, small_speeds, merged, strict=True):
        figures = {"dense": dense_speed.to_dict(), "small": speed.to_dict(), "where": hardware}
        if merged_model is not None:
            figures["merged"] = next(merged_speeds).to_dict()
        store.runs.add_result(run.id, "speed", hardware, figures)


def _merge(model: lrcore.LoadedModel, reporter: Reporter) -> lrcore.LoadedModel | None:
    """Return a model in which factors are multiplied out if they are slower than dense matrices.

    Returns None if no factors are slower, if memory is insufficient, or for offloaded layers.
    """
    if model.offloaded:
        return None
    try:
        merged = lrcore.merge_factors(model, progress=reporter.progress)
    except ResourceError as error:
        reporter.add_log(str(error))
        return None
    return None if merged is model else merged


def load_dense(
    store: Store,
    recipe: lrcore.Recipe,
    reporter: Reporter,
    evaluation: lrcore.EvaluationSettings | None = None,
) -> lrcore.LoadedModel:
    """Load the dense model of a recipe, as a separate stage of the job.

    evaluation: the settings of the evaluation at the end of the job. Raises InputError immediately
    if the evaluation is not possible, and before a download if the model does not fit in memory.
    """
    part = reporter.part
    reporter.progress("load", 0, 1)
    if store.peek_dense(recipe) is None:
        announce_download(recipe, reporter)
    model = store.dense(recipe)
    reporter.part = part
    if evaluation is not None:
        check_evaluation(model, evaluation.held_out_from([recipe.data]))
    reporter.progress("load", 1, 1)
    return model


def announce_download(recipe: lrcore.Recipe, reporter: Reporter) -> None:
    """Report the size of a model that has to be downloaded from the hub.

    Raises ResourceError if it does not fit in the memory of the device and of the CPU, through
    which it is loaded. Offloaded layers need not fit.
    """
    size = hub_size(recipe.model, recipe.revision)
    if size is None:
        return
    needed, text = size.memory(recipe.dtype), words.compress
    devices = {"cpu", str(resolve_device(recipe.device))}
    known = [free for free in (hardware(name).free for name in devices) if free is not None]
    free = min(known, default=None)
    to_download = numbers.megabytes(size.download / 1e6)
    shown = "?" if free is None else numbers.megabytes(free / 1e6)
    in_memory = numbers.megabytes(needed / 1e6)
    reporter.add_log(
        text.DOWNLOAD_SIZE.format(recipe.model, to_download, in_memory, recipe.dtype, shown)
    )
    if not recipe.offload:
        subject = text.DOWNLOAD_SUBJECT.format(recipe.model, recipe.dtype)
        raise_unless_free(needed, subject, text.DOWNLOAD_REMEDY, free)
    reporter.part = f"{reporter.part} {text.DOWNLOADS.format(to_download)}".strip()
    reporter.progress("load", 0, 1)


def evaluate_run(
    store: Store, run: Run, settings: lrcore.EvaluationSettings, reporter: Reporter
) -> dict[str, Any]:
    """Evaluate a run and its dense model on the same tokens, and store the result.

    Returns the stored values: `Evaluation.to_dict` of the run, dense_perplexity, kl, top1, delta
    and delta_error (see `Comparison`), settings, same_base (whether the run was compressed from
    this dense model) and when.
    """
    dense = store.dense(run.recipe)
    comparison = lrcore.compare(
        dense,
        store.run_model(run),
        settings,
        progress=lambda _, done, total: reporter.progress("evaluate both", done, total),
    ).to_dict()
    result = comparison["small"] | {
        "dense_perplexity": comparison["dense"]["perplexity"],
        "kl": comparison["kl"],
        "top1": comparison["top1"],
        "delta": comparison["delta"],
        "delta_error": comparison["delta_error"],
        "same_base": run.base is not None and dense.fingerprint == run.base.fingerprint,
        "settings": asdict(settings),
        "when": time.time(),
    }
    store.runs.add_evaluation(run.id, result)
    reporter.outcome = run_text.outcome(run, result)
    return result
