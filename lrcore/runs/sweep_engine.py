"""The engine that runs sweeps, for the command line and the page; each has a different store."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..compression.calibration.calibrate import calibrate
from ..compression.pipeline.compress import check_recipe
from ..compression.solve.factorize import Factorization
from ..compression.steps.chain import Chain, StepContext, chain_key
from ..data import check_named
from ..evaluation.evaluation_settings import EvaluationSettings
from ..models.kv_cache import quantized_kv_bytes
from ..models.load import LoadedModel
from ..models.model_size import count_account
from ..recipes.recipe import Recipe
from ..system.errors import InputError, ResourceError
from ..system.progress import Progress, silent
from ..system.units import HERE, Work, workers
from .sweep import Sweep
from .sweep_rows import SweepRow
from .sweep_store import CellFiles, SweepCell, SweepStore, cells

Factors = Callable[[LoadedModel, Recipe, Progress], Factorization]


def run_sweep(
    model: LoadedModel,
    sweep: Sweep,
    store: str | Path | SweepStore,
    progress: Progress | None = None,
) -> list[SweepRow]:
    """Run the cells that the store lacks, in order or on the workers of a cluster, and return the
    rows of all cells.

    The rows of the dense model come first. store: a folder stands for `CellFiles` in it. progress
    is also called with ("sweep", completed cells, cells). A cell that is not possible, such as a KV
    budget for a method that does not change the cache, becomes a row with the error. Raises
    InputError if a folder is given and the sweep has no measurements or a cell has an invalid
    option, and ResourceError if disk or memory do not suffice.
    """
    if not isinstance(store, SweepStore):
        if not sweep.evaluations and not sweep.tasks:
            raise InputError("The sweep has no measurements; give an evaluation or a task.")
        steps = [step for chain in sweep.cells() for step in chain]
        for step in steps:
            if step.kind == "compress":
                check_recipe(step.recipe)
        texts = [text for step in steps for text in (step.reads_text, step.measures_text) if text]
        texts += [settings.data for settings in sweep.evaluations]
        for data in dict.fromkeys(texts):
            check_named(data)
        store = CellFiles(store)
    progress, all_cells = progress or silent, cells(model, sweep)
    work = Work("sweep", _CellTask(model, sweep, store, all_cells), attrgetter("factors_key"))
    sweep_workers = workers() if store.shared else HERE
    if sweep_workers.apart:
        unfinished = [cell for cell in all_cells if store.finished(cell) is None]
        _calibrate_first(model, unfinished, progress)
        if unfinished:
            _evaluate_dense_first(model, sweep, store, progress)
    rows = sweep_workers.map_units(work, all_cells, progress)
    return [row for cell_rows in rows for row in cell_rows]


def _calibrate_first(model: LoadedModel, unfinished: list[SweepCell], progress: Progress) -> None:
    """Calibrate once in this process, so that the workers find the moments in the cache."""
    first = [cell.steps[0] for cell in unfinished if cell.steps]
    windows = Recipe.fields_of("windows")
    for recipe in {
        tuple(getattr(step.recipe, name) for name in windows): step.recipe
        for step in first
        if step.kind == "compress"
    }.values():
        with suppress(InputError):  # the rows of its cells will have the error
            calibrate(model, recipe, progress)


def _evaluate_dense_first(
    model: LoadedModel, sweep: Sweep, store: SweepStore, progress: Progress
) -> None:
    """Let all workers share the evaluations of the dense model, with which every cell is compared.

    The store is sent to the workers with the results.
    """
    for settings in sweep.evaluations:
        with suppress(InputError):  # the rows of the cells will have the error
            store.evaluate_dense(model, settings, progress)


class ChainModels:
    """The models of a sweep's chains, made step by step from a dense model.

    A model that a later cell starts with stays in memory until that cell is complete. chains: those
    of all cells, in order; factors: returns the factors that a compression uses.
    """

    def __init__(self, dense: LoadedModel, chains: Sequence[Chain], factors: Factors) -> None:
        self.dense, self._factors = dense, factors
        self._prefixes = [
            {chain_key(chain[:n]) for n in range(1, len(chain) + 1)} for chain in chains
        ]
        self._next_cell = 0  # number of the next cell
        self._models: dict[str, LoadedModel] = {}

    def model(self, chain: Chain, progress: Progress) -> LoadedModel:
        """Return the model of a chain; the dense model for ().

        Raises InputError for a step that cannot follow the preceding steps.
        """
        if not chain:
            return self.dense
        if (stored := self._models.get(chain_key(chain))) is not None:
            return stored

        def factors(model: LoadedModel, recipe: Recipe) -> Factorization:
            return self._factors(model, recipe, progress)

        def earlier(fingerprint: str) -> LoadedModel | None:
            models = (self.model(chain[:n], progress) for n in range(len(chain)))
            return next((model for model in models if model.fingerprint == fingerprint), None)

        previous = self.model(chain[:-1], progress)
        result = chain[-1].apply(previous, StepContext(progress, factors, earlier))
        self.keep(chain, result)
        return result

    def keep(self, chain: Chain, model: LoadedModel) -> None:
        """Store the model of a chain if a later cell starts with it."""
        key = chain_key(chain)
        if any(key in prefixes for prefixes in self._prefixes[self._next_cell :]):
            self._models[key] = model

    def begin_cell(self, number: int) -> None:
        """Release the models that neither the cell of this number nor a later cell starts with."""
        needed = set().union(*self._prefixes[number:])
        self._models = {key: model for key, model in self._models.items() if key in needed}
        self._next_cell = number + 1


@dataclass(frozen=True)
class _CellTask:
    """The task of a sweep: makes and stores the rows of a cell unless the store has them.

    It holds the models that later cells start with, so a process should run its cells in order.
    """

    model: LoadedModel
    sweep: Sweep
    store: SweepStore
    cells: list[SweepCell]

    def __call__(self, cell: SweepCell, progress: Progress) -> list[SweepRow]:
        self._models.begin_cell(cell.number)
        rows = self.store.finished(cell)
        if rows is None:
            rows = _cell_rows(self._models, self.sweep, cell, self.store, progress)
            self.store.keep(cell, rows)
        return rows

    @cached_property
    def _models(self) -> ChainModels:
        return ChainModels(self.model, [cell.steps for cell in self.cells], self.store.factors)


def _cell_rows(
    models: ChainModels, sweep: Sweep, cell: SweepCell, store: SweepStore, progress: Progress
) -> list[SweepRow]:
    start = time.perf_counter()
    try:
        model = _cell_model(models, cell, store, progress)
    except ResourceError:
        raise  # the next cell would fail as well; this cell is possible with more room
    except InputError as error:
        texts: list[str | None] = [settings.title for settings in sweep.evaluations]
        texts += [task.title for task in sweep.tasks]
        return [
            SweepRow.of(cell.steps, {}, {}, measured_on=text, error=str(error))
            for text in texts or [None]
        ]
    seconds = time.perf_counter() - start
    account = _account(cell, model, models.dense, sweep.base.seq_len)
    costs = store.costs(model, models.dense, sweep.speed, progress)
    if sweep.speed and cell.steps:
        costs = {**costs, "making_seconds": seconds}
    measurements = [
        (
            settings.title,
            _with_quantized_cache(account, model, settings),
            store.measure(cell, model, models.dense, settings, progress),
        )
        for settings in sweep.evaluations
    ]
    for task in sweep.tasks:
        figures = store.answer(model, task, progress)
        measurements.append((task.title, account, figures))
        measurements += [
            (f"{task.title}, {name}", account, _of_group(share))
            for name, share in figures.get("groups", {}).items()
        ]
    context = sweep.base.seq_len
    return [
        SweepRow.of(cell.steps, sizes, {**costs, **figures}, measured_on=title, context=context)
        for title, sizes, figures in measurements
    ]


def _of_group(share: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a group of a task's items."""
    return {"accuracy": share["accuracy"], "accuracy_error": share["error"]}


def _with_quantized_cache(
    account: Mapping[str, Any], model: LoadedModel, settings: EvaluationSettings
) -> Mapping[str, Any]:
    """Return the account with the size of the cache at the bits of the evaluation."""
    if settings.kv_bits is None:
        return account
    return {
        **account,
        "kv_bytes_per_token": round(quantized_kv_bytes(model.network, settings.kv_bits)),
    }


def _cell_model(
    models: ChainModels, cell: SweepCell, store: SweepStore, progress: Progress
) -> LoadedModel:
    """Return the model of a cell: the dense model, a stored model, or the result of the steps."""
    if not cell.steps:
        return models.dense
    if (stored := store.model(cell)) is not None:
        models.keep(cell.steps, stored)
        return stored
    model = models.model(cell.steps, progress)
    store.keep_model(cell, model)
    return model


def _account(
    cell: SweepCell, model: LoadedModel, dense: LoadedModel, context: int
) -> Mapping[str, Any]:
    """Return size and cost by formula, under the names of the columns.

    For several steps, the achieved reduction refers to the dense model. Times were measured
    relative to the model before the last step and are unchanged.
    """
    account = model.account
    if account is None:
        return count_account(model.network, context).to_dict() | {"achieved": 0.0}
    if len(cell.steps) > 1 and account.budget != "latency":
        counted = context if model.recipe is None else model.recipe.seq_len
        account = replace(account, dense=count_account(dense.network, counted))
    return account.model.to_dict() | {"achieved": account.achieved}
