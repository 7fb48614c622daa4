"""Where a sweep keeps what it has made: `SweepStore`, and its cells as files, `CellFiles`."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..as_json import json_text
from ..calibration.calibrate import calibrate
from ..compression.chain import Chain
from ..compression.evidence.table import measure_evidence
from ..compression.factorise import Factorisation, factorise, method_options
from ..compression.refit import refit_key
from ..compression.write import asks_for_refit
from ..evaluation.cost import measure_cost, measure_speed
from ..evaluation.evaluate import Evaluation, evaluate
from ..evaluation.settings import EvaluationSettings, TaskSettings
from ..evaluation.tasks import answer
from ..files import cache_key, check_file, write_text
from ..models.load import LoadedModel
from ..progress import Progress
from ..recipe import Recipe
from .sweep import Sweep
from .sweep_rows import SweepRow

FORMAT = 2  # of the cells; raise it whenever what is measured changes its meaning


@dataclass(frozen=True)
class Cell:
    """One model of a sweep. number: 0 for the dense one, which takes no steps; then in the order of
    `Sweep.cells`. key: names all that its rows depend on.
    """

    number: int
    steps: Chain
    key: str

    @property
    def factors_key(self) -> tuple[Any, ...]:
        """The same for all cells whose first step compresses the dense model with the same factors,
        or takes the same recipe; empty for the dense model.
        """
        return _factors_key(self.steps[0].recipe) if self.steps else ()

    @property
    def title(self) -> str:
        """In a few words, for a log."""
        if not self.steps:
            return "dense model"
        texts = dict.fromkeys(text for step in self.steps if (text := step.reads_text))
        labels = " > ".join(step.title for step in self.steps)
        return f"{labels}, on {', '.join(texts)}" if texts else labels


def cells(model: LoadedModel, sweep: Sweep) -> list[Cell]:
    """The dense model, then every chain of steps."""
    chains = [(), *sweep.cells()]
    return [Cell(i, chain, _key(model, sweep, chain)) for i, chain in enumerate(chains)]


def _factors_key(recipe: Recipe) -> tuple[Any, ...]:
    """What a factorisation of one model depends on."""
    windows = [getattr(recipe, name) for name in Recipe.fields_of("windows")]
    return (*windows, recipe.method, *sorted(method_options(recipe).items()))


def _key(model: LoadedModel, sweep: Sweep, chain: Chain) -> str:
    made: dict[str, Any] = {"seq_len": sweep.base.seq_len}  # the context of the dense FLOPs
    if [step.kind for step in chain] == ["compress"]:
        recipe = chain[0].recipe
        options = sorted(method_options(recipe).items())
        made = {**recipe.identity(), "device": str(model.device), "options": options}
    elif chain:
        steps = [step.to_dict() for step in chain]
        made |= {"steps": steps, "device": str(model.device)}
        made |= {"achieved": "of the dense model"} if len(chain) > 1 else {}
    refit = [s.recipe for s in chain if s.kind == "compress" and asks_for_refit(s.recipe)]
    if refit:
        made["refit_key"] = refit_key(any(one.trains for one in refit))
    measured = [_named(one) for one in sweep.evaluations] + [asdict(one) for one in sweep.tasks]
    return cache_key(FORMAT, model.fingerprint, model.dtype, made, measured, sweep.speed)


def _named(settings: EvaluationSettings) -> dict[str, Any]:
    """Its fields; kv_bits only where it is given, so that cells of earlier versions stay."""
    return {
        name: value
        for name, value in asdict(settings).items()
        if name != "kv_bits" or value is not None
    }


class SweepStore(ABC):
    """What `run_sweep` asks for every cell, in the order of these methods.

    `finished` and `keep` must be written; the others have a default. shared: whether other
    processes that are sent a copy of it keep their cells in the same place, so that workers of a
    cluster may do them.
    """

    shared = False
    _factors: tuple[tuple[Any, ...], Factorisation] | None = None

    @abstractmethod
    def finished(self, cell: Cell) -> list[SweepRow] | None:
        """The rows of a cell that is made and measured; None where there is something to do."""

    def model(self, cell: Cell) -> LoadedModel | None:
        """The model of a cell that was kept before it was measured, else None."""
        del cell
        return None

    def factors(self, model: LoadedModel, recipe: Recipe, progress: Progress) -> Factorisation:
        """The factorisation that the next cells share, with the evidence of the recipe's policy;
        one at a time is held.
        """
        key = (model.fingerprint, *_factors_key(recipe))
        if self._factors is None or self._factors[0] != key:
            calibration = calibrate(model, recipe, progress)
            made = factorise(model, calibration, recipe.method, progress, method_options(recipe))
            self._factors = (key, made)
        self._factors = (key, measure_evidence(model, self._factors[1], recipe, progress))
        return self._factors[1]

    def keep_model(self, cell: Cell, model: LoadedModel) -> None:
        """Called with the model of a cell's last step, before it is measured."""
        del cell, model

    def costs(
        self, model: LoadedModel, dense: LoadedModel, speed: bool, progress: Progress
    ) -> Mapping[str, Any]:
        """The measured costs, by column. speed: also beside the dense model, in turns."""
        del model, dense, speed, progress
        return {}

    def measure(
        self,
        cell: Cell,
        model: LoadedModel,
        dense: LoadedModel,
        settings: EvaluationSettings,
        progress: Progress,
    ) -> Mapping[str, Any]:
        """The figures of one evaluation, by column, and its `delta_error` against the dense model,
        which is evaluated once; others are passed over.
        """
        if not cell.steps:
            return self._on_dense(dense, settings, progress).to_dict()
        own = evaluate(model, settings, progress=progress)
        error = own.delta_error(self._on_dense(dense, settings, progress))
        return own.to_dict() | {"delta_error": error if math.isfinite(error) else None}

    def _on_dense(
        self, dense: LoadedModel, settings: EvaluationSettings, progress: Progress
    ) -> Evaluation:
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
        """The accuracy on a task, by column; other figures are passed over."""
        return answer(model, settings, progress)

    @abstractmethod
    def keep(self, cell: Cell, rows: list[SweepRow]) -> None:
        """Called with all rows of a cell; where it could not be made, they hold the error."""


class CellFiles(SweepStore):
    """Every finished cell is a file of its own, written under another name and then renamed; its
    name stands for all that it depends on, so that a restart, or a wider sweep in the same folder,
    repeats none. Raises InputError where a file is in the place of the folder.
    """

    shared = True

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute() / "cells"
        check_file(self._folder / "cell.json")

    def _path(self, cell: Cell) -> Path:
        return self._folder / f"{cell.key}.json"

    def finished(self, cell: Cell) -> list[SweepRow] | None:
        """The same; a file that is damaged, or whose rows have other columns, counts as none."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            kept = json.loads(self._path(cell).read_text(encoding="utf-8"))
            return [SweepRow.from_dict(row) for row in kept["rows"]]
        return None

    def costs(
        self, model: LoadedModel, dense: LoadedModel, speed: bool, progress: Progress
    ) -> Mapping[str, Any]:
        cost = measure_cost(model, min(256, (dense.context or 257) - 1))
        costs = {
            "measured_kv_bytes_per_token": cost.kv_bytes_per_token,
            "measured_flops_per_token": cost.flops_decode,
            "measured_context": cost.context,
        }
        if speed:
            first, own = measure_speed([dense, model], rounds=3, progress=progress)
            costs["prefill_speedup"] = own.prefill / first.prefill
            costs["decode_speedup"] = own.decode / first.decode
        return costs

    def keep(self, cell: Cell, rows: list[SweepRow]) -> None:
        steps = [step.to_dict() for step in cell.steps]
        values = {"rows": [row.to_dict() for row in rows], "steps": steps}
        write_text(self._path(cell), json_text(values, indent=1, nulls=True))
