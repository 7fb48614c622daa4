"""Job for a sweep. Existing runs and evaluations are reused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import lrcore
from lrcore.compression.solve.factorize import Factorization
from lrcore.evaluation.evaluate import check_evaluation
from lrcore.runs.runs import Run
from lrcore.runs.sweep import cross_calibration
from lrcore.runs.sweep_report import tables as sweep_tables
from lrcore.runs.sweep_rows import SweepRow
from lrcore.runs.sweep_store import SweepCell, SweepStore
from lrcore.system.progress import Progress

from ..state.job import Job, Reporter
from ..state.job_record import JobRecord
from ..state.store import Store
from ..state.sweep_runs import find_evaluation, find_run, run_row, sweep_rows
from ..views import run_text
from .measuring import evaluate_run, load_dense
from .models import run_name, save_run


@dataclass(frozen=True)
class SweepJob(Job):
    """A run for each combination of method, policy, ratio and calibration set.

    Empty tuples stand for the value of the recipe. evaluation: settings for all runs; None for no
    evaluation. cross: whether to evaluate on all calibration sets instead of the data in
    `evaluation`.
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
        """Return the sweep of lrcore. Raises InputError for an unknown method or policy."""
        return lrcore.Sweep(
            self.recipe,
            self.methods,
            self.policies,
            self.ratios,
            self.calibration_sets,
            self.evaluations(),
        )

    def evaluations(self) -> tuple[lrcore.EvaluationSettings, ...]:
        """Return the evaluations of each run: one per calibration set for a cross-calibration
        study. Files used for calibration are replaced by their held-out tails.
        """
        if self.evaluation is None:
            return ()
        sets = self.calibration_sets or (self.recipe.data,)
        measured_on = self.calibration_sets if self.cross else (self.evaluation.data,)
        return tuple(
            replace(self.evaluation, data=data).held_out_from(sets) for data in measured_on
        )

    def check(self) -> None:
        """Raise InputError if a cross-calibration study lacks calibration sets or an evaluation."""
        if not self.cross:
            return
        cross_calibration(self.recipe, self.calibration_sets)
        if self.evaluation is None:
            raise lrcore.InputError(
                "A cross-calibration study evaluates all runs. Select Measure dense and compressed "
                "above."
            )

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        """Run the sweep. Failed cells are skipped with a line in the log, for example a KV budget
        for a method that does not compress the cache.
        """
        dense = load_dense(store, self.recipe, reporter)
        for evaluation in self.evaluations():
            check_evaluation(dense, evaluation)
        runs = SweepRuns(self, store, reporter)
        lrcore.run_sweep(dense, self.sweep(), runs, runs.progress)
        if runs.error and not reporter.result:
            raise lrcore.InputError(runs.error)
        settings = next(iter(self.evaluations()), None)
        reporter.outcome = run_text.lowest(store.runs_by_id(reporter.result), settings)
        return reporter.result


class SweepRuns(SweepStore):
    """Store of `lrcore.run_sweep` that saves models as runs and evaluates them.

    error: message of the last failed cell; "" if none failed.
    """

    def __init__(self, job: SweepJob, store: Store, reporter: Reporter) -> None:
        self._job, self._store, self._reporter = job, store, reporter
        self._cells = len(job.sweep().cells())
        self._run: Run | None = None  # of the current cell
        self.error = ""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report progress of a run. The progress of the sweep is `Reporter.part`, "run 2 of 9"."""
        if stage != "sweep":
            self._reporter.progress(stage, done, total)

    def finished(self, cell: SweepCell) -> list[SweepRow] | None:
        """Return the rows of a cell whose run is saved and evaluated; None if a part is missing.

        This is the first call for a cell, so it also logs the cell and looks up its run.
        """
        if not cell.steps:
            return []  # the dense model is evaluated with each run
        reporter = self._reporter
        reporter.part = f"run {cell.number} of {self._cells}"
        reporter.add_log(f"{reporter.part}: {cell.title}")
        self._run = find_run(self._store.runs.all(), cell.steps[0].recipe)
        if self._run is None:
            return None
        reporter.add_log(f"already saved as {self._run.name} ({self._run.id})")
        evaluations = [
            (settings.data, find_evaluation(self._run, settings))
            for settings in self._job.evaluations()
        ]
        if any(evaluation is None for _, evaluation in evaluations):
            return None
        reporter.result = [*reporter.result, self._run.id]
        return [
            run_row(self._run, evaluation, data)
            for data, evaluation in evaluations
            if evaluation is not None
        ]

    def model(self, cell: SweepCell) -> lrcore.LoadedModel | None:
        del cell
        return None if self._run is None else self._store.run_model(self._run)

    def factors(
        self, model: lrcore.LoadedModel, recipe: lrcore.Recipe, progress: Progress
    ) -> Factorization:
        del model
        return self._store.factors(recipe, progress)

    def keep_model(self, cell: SweepCell, model: lrcore.LoadedModel) -> None:
        recipe = cell.steps[0].recipe
        self._run = save_run(self._store, self._reporter, recipe, run_name(recipe), model)

    def measure(
        self,
        cell: SweepCell,
        model: lrcore.LoadedModel,
        dense: lrcore.LoadedModel,
        settings: lrcore.EvaluationSettings,
        progress: Progress,
    ) -> Mapping[str, Any]:
        """Return the evaluation of the current run, which includes the dense model."""
        del model, dense, progress
        if self._run is None:
            return {}
        stored = find_evaluation(self._run, settings)
        return stored or evaluate_run(self._store, self._run, settings, self._reporter)

    def keep(self, cell: SweepCell, rows: list[SweepRow]) -> None:
        errors = [row.error for row in rows if row.error]
        if errors:
            self.error = errors[0]
            self._reporter.add_log(f"skipped: {self.error}")
        elif self._run is not None:
            self._reporter.result = [*self._reporter.result, self._run.id]


def table_files(record: JobRecord, runs: lrcore.Runs) -> dict[str, str]:
    """Return {file name: text} for table.csv, table.json and report.html of a sweep.

    The tables contain the runs that were not deleted. Raises InputError if none was evaluated.
    """
    job, existing = cast(SweepJob, record.job), set(runs.ids())
    sweep_runs = [runs.get(run_id) for run_id in record.result if run_id in existing]
    rows = sweep_rows(sweep_runs, job.evaluations())
    if not rows:
        raise lrcore.InputError("The table is empty, because this sweep has no evaluated runs.")
    return sweep_tables(rows, job.sweep().to_dict())
