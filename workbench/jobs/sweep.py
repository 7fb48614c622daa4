"""A sweep as one job: what is there already, from before a stop, is not made again."""

from dataclasses import dataclass, replace
from typing import ClassVar

import lrcore

from ..job import Job, Reporter
from ..job_record import JobRecord
from ..store import Store
from ..sweeps import lacking, made, rows
from .measuring import evaluate_run
from .models import make_run


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
        measured = self.evaluations()
        return lrcore.Sweep(
            self.recipe,
            self.methods,
            self.policies,
            self.ratios,
            self.calibration_sets,
            *([measured] if measured else ()),
        )

    def evaluations(self) -> tuple[lrcore.EvaluationSettings, ...]:
        """What every run is measured on: the settings, for a cross-calibration study on each of its
        sets, or nothing.
        """
        if self.evaluation is None:
            return ()
        if not self.cross:
            return (self.evaluation,)
        return tuple(replace(self.evaluation, data=data) for data in self.calibration_sets)

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
        cells, refused = self.sweep().cells(), None
        for i, recipe in enumerate(cells):
            reporter.part = f"run {i + 1} of {len(cells)}"
            reporter.note(
                f"{reporter.part}: {recipe.method}, {recipe.policy}, remove {recipe.ratio:.0%}, "
                f"calibrated on {recipe.data}"
            )
            run = made(store.runs.all(), recipe)
            if run is not None:
                reporter.note(f"there already as {run.name} ({run.id})")
            try:
                run = run or make_run(store, recipe, reporter)
            except lrcore.InputError as error:
                refused = error
                reporter.note(f"left out: {error}")
                continue
            for settings in lacking(run, self.evaluations()):
                evaluate_run(store, run, settings, reporter)
            reporter.result = [*reporter.result, run.id]
        if refused and not reporter.result:
            raise refused
        return reporter.result


def tables(record: JobRecord, runs: lrcore.Runs) -> dict[str, str]:
    """{file name: text} of table.csv, table.json and report.html, of the runs that a sweep has made
    so far and that are still there.

    Raises InputError where none of them is there and measured.
    """
    job, known = record.job, set(runs.ids())
    own = rows([runs.get(one) for one in record.result if one in known], job.evaluations())
    if not own:
        raise lrcore.InputError(
            "There is no table: none of this sweep's runs is there and measured."
        )
    table = [lrcore.SweepRow.from_dict(row) for row in own]
    return lrcore.sweep_tables(table, job.sweep().to_dict())
