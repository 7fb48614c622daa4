"""A sweep as one job: what is there already, from before a stop, is not made again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import lrcore

from .. import run_text
from ..job import Job, Reporter
from ..job_record import JobRecord
from ..store import Store
from ..sweeps import evaluation_of, made, rows, run_row
from .measuring import evaluate_run, load_dense
from .models import keep_run, run_name


@dataclass(frozen=True)
class SweepJob(Job):
    """A run for every method, policy, ratio and calibration set.

    What is left empty is the recipe's own. evaluation: how each run is measured, None for not at
    all. cross: on every calibration set instead of on the evaluation's own data.
    """

    kind: ClassVar[str] = "sweep"

    recipe: lrcore.Recipe
    methods: tuple[str, ...]
    ratios: tuple[float, ...]
    policies: tuple[str, ...] = ()
    calibration_sets: tuple[str, ...] = ()
    evaluation: lrcore.EvaluationSettings | None = None
    cross: bool = False

    @property
    def title(self) -> str:
        return f"Sweep of {len(self.sweep().cells())} runs on {self.recipe.model}"

    def sweep(self) -> lrcore.Sweep:
        """The sweep of the core. Raises InputError for an unknown method or policy."""
        return lrcore.Sweep(
            self.recipe,
            self.methods,
            self.policies,
            self.ratios,
            self.calibration_sets,
            self.evaluations(),
        )

    def evaluations(self) -> tuple[lrcore.EvaluationSettings, ...]:
        """What every run is measured on: the settings, for a cross-calibration study on each of its
        sets, or nothing; of a file that is calibrated on, its held-out tail.
        """
        if self.evaluation is None:
            return ()
        sets = self.calibration_sets or (self.recipe.data,)
        measured_on = self.calibration_sets if self.cross else (self.evaluation.data,)
        return tuple(replace(self.evaluation, data=one).apart_from(sets) for one in measured_on)

    def check(self) -> None:
        """Raises InputError where a cross-calibration study lacks sets or a measurement."""
        if not self.cross:
            return
        lrcore.cross_calibration(self.recipe, self.calibration_sets)
        if self.evaluation is None:
            raise lrcore.InputError(
                "A cross-calibration study measures every run: tick Measure dense and compressed "
                "above."
            )

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        """A run that cannot be made, such as a KV budget for a method that leaves the cache as it
        is, is left out and said in the log.
        """
        dense = load_dense(store, self.recipe, reporter)
        for one in self.evaluations():
            lrcore.check_evaluation(dense, one)
        kept = RunStore(self, store, reporter)
        lrcore.run_sweep(dense, self.sweep(), kept, kept.progress)
        if kept.refused and not reporter.result:
            raise lrcore.InputError(kept.refused)
        settings = next(iter(self.evaluations()), None)
        reporter.outcome = run_text.lowest(store.chosen_runs(reporter.result), settings)
        return reporter.result


class RunStore(lrcore.SweepStore):
    """What `lrcore.run_sweep` makes is kept as runs, each measured beside its dense model.

    refused: why the last cell that could not be made was left out.
    """

    def __init__(self, job: SweepJob, store: Store, reporter: Reporter) -> None:
        self._job, self._store, self._reporter = job, store, reporter
        self._cells = len(job.sweep().cells())
        self._run: lrcore.Run | None = None  # of the present cell
        self.refused = ""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Without the sweep's own stage: the record names the part instead."""
        if stage != "sweep":
            self._reporter.progress(stage, done, total)

    def finished(self, cell: lrcore.Cell) -> list[lrcore.SweepRow] | None:
        if not cell.steps:
            return []  # measured beside every run
        reporter = self._reporter
        reporter.part = f"run {cell.number} of {self._cells}"
        reporter.note(f"{reporter.part}: {cell.title}")
        self._run = made(self._store.runs.all(), cell.steps[0].recipe)
        if self._run is None:
            return None
        reporter.note(f"there already as {self._run.name} ({self._run.id})")
        known = [(one.data, evaluation_of(self._run, one)) for one in self._job.evaluations()]
        if any(evaluation is None for _, evaluation in known):
            return None
        reporter.result = [*reporter.result, self._run.id]
        return [run_row(self._run, one, data) for data, one in known if one is not None]

    def model(self, cell: lrcore.Cell) -> lrcore.LoadedModel | None:
        del cell
        return None if self._run is None else self._store.small(self._run)

    def factors(
        self, model: lrcore.LoadedModel, recipe: lrcore.Recipe, progress: lrcore.Progress
    ) -> lrcore.Factorisation:
        del model
        return self._store.factors(recipe, progress)

    def keep_model(self, cell: lrcore.Cell, model: lrcore.LoadedModel) -> None:
        recipe = cell.steps[0].recipe
        name = run_name(recipe)
        self._run = keep_run(self._store, self._reporter, recipe, name, model)

    def measure(
        self,
        cell: lrcore.Cell,
        model: lrcore.LoadedModel,
        dense: lrcore.LoadedModel,
        settings: lrcore.EvaluationSettings,
        progress: lrcore.Progress,
    ) -> Mapping[str, Any]:
        """The dense model's figures come with every run's."""
        del model, dense, progress
        if self._run is None:
            return {}
        known = evaluation_of(self._run, settings)
        return known or evaluate_run(self._store, self._run, settings, self._reporter)

    def keep(self, cell: lrcore.Cell, rows: list[lrcore.SweepRow]) -> None:
        errors = [row.error for row in rows if row.error]
        if errors:
            self.refused = errors[0]
            self._reporter.note(f"left out: {self.refused}")
        elif self._run is not None:
            self._reporter.result = [*self._reporter.result, self._run.id]


def tables(record: JobRecord, runs: lrcore.Runs) -> dict[str, str]:
    """{file name: text} of table.csv, table.json and report.html, of the runs that a sweep has made
    so far and that are still there.

    Raises InputError where none of them is there and measured.
    """
    job, known = cast(SweepJob, record.job), set(runs.ids())
    table = rows([runs.get(one) for one in record.result if one in known], job.evaluations())
    if not table:
        raise lrcore.InputError(
            "There is no table: none of this sweep's runs is there and measured."
        )
    return lrcore.sweep_tables(table, job.sweep().to_dict())
