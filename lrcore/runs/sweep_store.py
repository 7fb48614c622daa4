"""Storage of the results of sweeps: `SweepStore`, and `CellFiles` with a file per cell."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..compression.calibration.calibrate import calibrate
from ..compression.evidence.measure import measure_evidence
from ..compression.solve.compress_layers import requests_refit
from ..compression.solve.distill import schedule_of
from ..compression.solve.factorize import Factorization, factorize, method_options
from ..compression.solve.refit import refit_key
from ..compression.steps.chain import Chain
from ..evaluation.cost import measure_cost, measure_speed
from ..evaluation.evaluate import Evaluation, evaluate
from ..evaluation.evaluation_settings import EvaluationSettings, TaskSettings
from ..evaluation.tasks import measure_task
from ..layers.forms import QUANTIZERS_REVISION
from ..models.load import LoadedModel
from ..recipes import former_names
from ..recipes.recipe import Recipe
from ..system.as_json import json_text
from ..system.files import cache_key, check_file, write_text
from ..system.progress import Progress
from ..system.settings import BOS
from .sweep import Sweep
from .sweep_rows import SweepRow

FORMAT = 2  # of the cells; increase it if the meaning of a measurement changes


@dataclass(frozen=True)
class SweepCell:
    """A model of a sweep.

    number: 0 for the dense model, which has no steps; then in the order of `Sweep.cells`. key:
    identifies all settings that the rows of the cell depend on.
    """

    number: int
    steps: Chain
    key: str

    @property
    def factors_key(self) -> tuple[Any, ...]:
        """Return a key that is equal for cells whose first steps use the same factorization.

        Empty for the dense model.
        """
        return _factors_key(self.steps[0].recipe) if self.steps else ()

    @property
    def title(self) -> str:
        """Return a short description of the cell for a log."""
        if not self.steps:
            return "dense model"
        texts = dict.fromkeys(text for step in self.steps if (text := step.reads_text))
        labels = " > ".join(step.title for step in self.steps)
        return f"{labels}, on {', '.join(texts)}" if texts else labels


def cells(model: LoadedModel, sweep: Sweep) -> list[SweepCell]:
    """Return the cells: the dense model, then all chains of steps."""
    chains = [(), *sweep.cells()]
    return [SweepCell(i, chain, _key(model, sweep, chain)) for i, chain in enumerate(chains)]


def _factors_key(recipe: Recipe) -> tuple[Any, ...]:
    """Return the settings that determine a factorization of a model."""
    windows = [getattr(recipe, name) for name in Recipe.fields_of("windows")]
    return (*windows, recipe.method, *sorted(method_options(recipe).items()))


def _key(model: LoadedModel, sweep: Sweep, chain: Chain) -> str:
    settings: dict[str, Any] = {"seq_len": sweep.base.seq_len}  # the context of the dense FLOPs
    if [step.kind for step in chain] == ["compress"]:
        recipe = chain[0].recipe
        options = sorted(former_names.former_options(method_options(recipe)).items())
        settings = {**recipe.identity(), "device": str(model.device), "options": options}
    elif chain:
        steps = [step.identity() for step in chain]
        settings |= {"steps": steps, "device": str(model.device)}
        settings |= {"achieved": "of the dense model"} if len(chain) > 1 else {}
    refit = [s.recipe for s in chain if s.kind == "compress" and requests_refit(s.recipe)]
    if refit:
        settings["refit_key"] = refit_key(any(recipe.trains_layers for recipe in refit))
    schedules = [schedule for r in refit if (schedule := schedule_of(r, model)) is not None]
    if schedules:
        settings["distillation_key"] = schedules[0].key
    if any(step.kind == "quantize" or step.recipe.budget == "bytes" for step in chain):
        settings["quantizers"] = QUANTIZERS_REVISION
    measured = [_evaluation_key(evaluation) for evaluation in sweep.evaluations]
    measured += [asdict(task) for task in sweep.tasks]
    return cache_key(FORMAT, model.fingerprint, model.dtype, settings, measured, sweep.speed)


def _evaluation_key(settings: EvaluationSettings) -> dict[str, Any]:
    """Return the fields of the settings without the defaults of kv_bits and bos, so that cells of
    earlier versions remain valid.
    """
    defaults = {"kv_bits": None, "bos": BOS[0]}
    return {
        name: value
        for name, value in asdict(settings).items()
        if name not in defaults or value != defaults[name]
    }


class SweepStore(ABC):
    """The storage interface of `run_sweep`, which calls the methods below in this order per cell.

    A subclass defines `finished` and `keep`; all other methods have a default. shared: whether
    copies of the store in different processes write to the same files, so that workers of a cluster
    can run the cells.
    """

    shared = False
    _factors: tuple[tuple[Any, ...], Factorization] | None = None

    @abstractmethod
    def finished(self, cell: SweepCell) -> list[SweepRow] | None:
        """Return the rows of a completed cell; None if the cell is not complete."""

    def model(self, cell: SweepCell) -> LoadedModel | None:
        """Return the model of a cell that was stored before it was measured; None if it is
        missing.
        """
        del cell
        return None

    def factors(self, model: LoadedModel, recipe: Recipe, progress: Progress) -> Factorization:
        """Return the factors that the next cells share, with the evidence of the recipe's policy.
        Only the last factors are held.
        """
        key = (model.fingerprint, *_factors_key(recipe))
        if self._factors is None or self._factors[0] != key:
            calibration = calibrate(model, recipe, progress)
            made = factorize(model, calibration, recipe.method, progress, method_options(recipe))
            self._factors = (key, made)
        self._factors = (key, measure_evidence(model, self._factors[1], recipe, progress))
        return self._factors[1]

    def keep_model(self, cell: SweepCell, model: LoadedModel) -> None:
        """Store the model of a cell; called before the model is measured."""
        del cell, model

    def costs(
        self, model: LoadedModel, dense: LoadedModel, speed: bool, progress: Progress
    ) -> Mapping[str, Any]:
        """Return the measured costs, by column. speed: whether to measure speed in turns with the
        dense model.
        """
        del model, dense, speed, progress
        return {}

    def measure(
        self,
        cell: SweepCell,
        model: LoadedModel,
        dense: LoadedModel,
        settings: EvaluationSettings,
        progress: Progress,
    ) -> Mapping[str, Any]:
        """Return the figures of an evaluation, by column, and its `delta_error` relative to the
        dense model.

        The dense model is evaluated only once. Figures without a column are ignored.
        """
        if not cell.steps:
            return self.evaluate_dense(dense, settings, progress).to_dict()
        evaluation = evaluate(model, settings, progress=progress)
        error = evaluation.delta_error(self.evaluate_dense(dense, settings, progress))
        return evaluation.to_dict() | {"delta_error": error if math.isfinite(error) else None}

    def evaluate_dense(
        self, dense: LoadedModel, settings: EvaluationSettings, progress: Progress
    ) -> Evaluation:
        """Return an evaluation of the dense model; each is computed only once."""
        key = (dense.fingerprint, settings)
        if key not in self._dense:
            self._dense[key] = evaluate(dense, settings, progress=progress)
        return self._dense[key]

    @cached_property
    def _dense(self) -> dict[tuple[str, EvaluationSettings], Evaluation]:
        return {}

    def answer(
        self, model: LoadedModel, settings: TaskSettings, progress: Progress
    ) -> Mapping[str, Any]:
        """Return the accuracy on a task, by column. Figures without a column are ignored."""
        return measure_task(model, settings, progress)

    @abstractmethod
    def keep(self, cell: SweepCell, rows: list[SweepRow]) -> None:
        """Store all rows of a cell; rows of a failed cell contain its error."""


class CellFiles(SweepStore):
    """A store with a file per completed cell.

    The name of a file is the key of its cell, so a restart, or a larger sweep in the same folder,
    repeats no cell. Files are written atomically. Raises InputError if the folder is a file.
    """

    shared = True

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute() / "cells"
        check_file(self._folder / "cell.json")

    def _path(self, cell: SweepCell) -> Path:
        return self._folder / f"{cell.key}.json"

    def finished(self, cell: SweepCell) -> list[SweepRow] | None:
        """Return the rows of a completed cell; None if its file is missing, is damaged, or has
        different columns.
        """
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            values = json.loads(self._path(cell).read_text(encoding="utf-8"))
            return [SweepRow.from_dict(row) for row in values["rows"]]
        return None

    def costs(
        self, model: LoadedModel, dense: LoadedModel, speed: bool, progress: Progress
    ) -> Mapping[str, Any]:
        # 256 tokens in the cache, or fewer, so that one more token fits the context
        cost = measure_cost(model, min(256, (dense.context or 257) - 1))
        costs = {
            "measured_kv_bytes_per_token": cost.kv_bytes_per_token,
            "measured_flops_per_token": cost.flops_decode,
            "measured_context": cost.context,
        }
        if speed:
            dense_speed, speed_of_model = measure_speed([dense, model], rounds=3, progress=progress)
            costs["prefill_speedup"] = speed_of_model.prefill / dense_speed.prefill
            costs["decode_speedup"] = speed_of_model.decode / dense_speed.decode
        return costs

    def keep(self, cell: SweepCell, rows: list[SweepRow]) -> None:
        steps = [step.to_dict() for step in cell.steps]
        values = {"rows": [row.to_dict() for row in rows], "steps": steps}
        write_text(self._path(cell), json_text(values, indent=1, nulls=True))
