"""Running a sweep: one engine for the command line and the page, which differ in their store."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..calibration.calibrate import calibrate
from ..compression.compress import check_recipe
from ..data import check_named
from ..errors import InputError, Shortage
from ..evaluation.settings import EvaluationSettings
from ..models.counting import count_account
from ..models.load import LoadedModel
from ..models.quantised_cache import quantised_kv_bytes
from ..progress import Progress, silent
from ..recipe import Recipe
from ..units import HERE, Work, workers
from .chain_models import ChainModels
from .sweep import Sweep
from .sweep_rows import SweepRow
from .sweep_store import Cell, CellFiles, SweepStore, cells


def run_sweep(
    model: LoadedModel,
    sweep: Sweep,
    store: str | Path | SweepStore,
    progress: Progress | None = None,
) -> list[SweepRow]:
    """Every cell that the store lacks, one after another, or on the workers of a cluster; returns
    the rows of all, those of the dense model first.

    store: a folder stands for `CellFiles` in it. progress is also called with ("sweep", cells done,
    cells). A cell that cannot be made, such as a KV budget for a method that leaves the cache as it
    is, becomes a row with its error. Raises InputError where a folder is given and nothing is to be
    measured or a cell has an option that there is not, and Shortage where disk or memory do not
    suffice.
    """
    if not isinstance(store, SweepStore):
        if not sweep.evaluations and not sweep.tasks:
            raise InputError("The sweep measures nothing: give an evaluation or a task.")
        steps = [step for chain in sweep.cells() for step in chain]
        for step in steps:
            if step.kind == "compress":
                check_recipe(step.recipe)
        read = [text for step in steps for text in (step.reads_text, step.measures_text) if text]
        for data in dict.fromkeys([*read, *(one.data for one in sweep.evaluations)]):
            check_named(data)
        store = CellFiles(store)
    progress, every = progress or silent, cells(model, sweep)
    work = Work("sweep", _Making(model, sweep, store, every), attrgetter("factors_key"))
    doing = workers() if store.shared else HERE
    if doing.apart:
        _calibrate_first(model, [cell for cell in every if store.finished(cell) is None], progress)
    rows = doing.each(work, every, progress)
    return [row for own in rows for row in own]


def _calibrate_first(model: LoadedModel, every: list[Cell], progress: Progress) -> None:
    """What several workers would calibrate at once, each for itself; they find it in the cache."""
    first = [cell.steps[0] for cell in every if cell.steps]
    windows = Recipe.fields_of("windows")
    for recipe in {
        tuple(getattr(step.recipe, name) for name in windows): step.recipe
        for step in first
        if step.kind == "compress"
    }.values():
        with suppress(InputError):  # its cells say why it cannot be done
            calibrate(model, recipe, progress)


@dataclass(frozen=True)
class _Making:
    """The task of a sweep: the rows of one cell, made and kept unless the store has them.

    The models that later cells go on from wait here: give a process its cells in their order.
    """

    model: LoadedModel
    sweep: Sweep
    store: SweepStore
    cells: list[Cell]

    def __call__(self, cell: Cell, progress: Progress) -> list[SweepRow]:
        self._models.reached(cell.number)
        rows = self.store.finished(cell)
        if rows is None:
            rows = _run(self._models, self.sweep, cell, self.store, progress)
            self.store.keep(cell, rows)
        return rows

    @cached_property
    def _models(self) -> ChainModels:
        return ChainModels(self.model, [cell.steps for cell in self.cells], self.store.factors)


def _run(
    models: ChainModels, sweep: Sweep, cell: Cell, store: SweepStore, progress: Progress
) -> list[SweepRow]:
    began = time.perf_counter()
    try:
        model = _made(models, cell, store, progress)
    except Shortage:
        raise  # the next cell would lack room as well, and this one can be made once there is some
    except InputError as error:
        texts: list[str | None] = [one.title for one in sweep.evaluations]
        texts += [one.title for one in sweep.tasks]
        return [
            SweepRow.of(cell.steps, {}, {}, measured_on=text, error=str(error))
            for text in texts or [None]
        ]
    seconds = time.perf_counter() - began
    account = _account(cell, model, models.dense, sweep.base.seq_len)
    costs = store.costs(model, models.dense, sweep.speed, progress)
    if sweep.speed and cell.steps:
        costs = {**costs, "making_seconds": seconds}
    found = [
        (
            one.title,
            _cached(account, model, one),
            store.measure(cell, model, models.dense, one, progress),
        )
        for one in sweep.evaluations
    ]
    for one in sweep.tasks:
        answered = store.answer(model, one, progress)
        found.append((one.title, account, answered))
        found += [
            (f"{one.title}, {name}", account, _of_group(share))
            for name, share in answered.get("groups", {}).items()
        ]
    more = {"context": sweep.base.seq_len}
    return [
        SweepRow.of(cell.steps, own, {**costs, **figures}, measured_on=name, **more)
        for name, own, figures in found
    ]


def _of_group(share: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a group of a task's items."""
    return {"accuracy": share["accuracy"], "accuracy_error": share["error"]}


def _cached(
    account: Mapping[str, Any], model: LoadedModel, settings: EvaluationSettings
) -> Mapping[str, Any]:
    """The account, with the cache in the bits in which an evaluation has it."""
    if settings.kv_bits is None:
        return account
    return {**account, "kv_bytes_per_token": round(quantised_kv_bytes(model, settings.kv_bits))}


def _made(models: ChainModels, cell: Cell, store: SweepStore, progress: Progress) -> LoadedModel:
    """The model of a cell: the dense one, one that was kept, or one that its steps make."""
    if not cell.steps:
        return models.dense
    if (kept := store.model(cell)) is not None:
        models.keep(cell.steps, kept)
        return kept
    model = models.model(cell.steps, progress)
    store.keep_model(cell, model)
    return model


def _account(cell: Cell, model: LoadedModel, dense: LoadedModel, context: int) -> Mapping[str, Any]:
    """Size and cost by formula, under the names of the columns. What several steps achieve is
    counted from the dense model, but times, which were measured beside the step before.
    """
    account = model.account
    if account is None:
        return count_account(model.network, context).to_dict() | {"achieved": 0.0}
    if len(cell.steps) > 1 and account.budget != "latency":
        counted = context if model.recipe is None else model.recipe.seq_len
        account = replace(account, dense=count_account(dense.network, counted))
    return account.model.to_dict() | {"achieved": account.achieved}
