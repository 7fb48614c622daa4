"""Job for a sweep whose rows are steps, such as a table of a paper.

It does the same as the command `sweep`. Cells and tables are in the folder of the runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lrcore
from lrcore.evaluation.evaluate import check_evaluation
from lrcore.runs.sweep_report import tables as sweep_tables
from lrcore.runs.sweep_rows import SweepRow
from lrcore.runs.sweep_store import CellFiles, SweepCell
from lrcore.system.as_json import json_text
from lrcore.system.files import write_text

from ..base import numbers
from ..state.job import Job, Reporter
from ..state.store import Store
from .measuring import load_dense


@dataclass(frozen=True)
class TableJob(Job):
    """Compression and evaluation of all rows of a table. Models are not saved."""

    kind: ClassVar[str] = "table"

    name: str
    sweep: lrcore.Sweep

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.sweep.cells())} rows on {self.sweep.base.model}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        """Run the sweep. A failed row has an error; raises InputError if all rows fail."""
        dense = load_dense(store, self.sweep.base, reporter)
        for evaluation in self.sweep.evaluations:
            check_evaluation(dense, evaluation)
        cells = ReportingCells(tables_folder(store), reporter, len(self.sweep.cells()))
        rows = lrcore.run_sweep(dense, self.sweep, cells, cells.progress)
        compressed = [row for row in rows if row.method != "dense"]
        if all(row.error for row in compressed):
            raise lrcore.InputError(str(compressed[0].error))
        content = json_text([row.to_dict() for row in rows], nulls=True)
        write_text(rows_file(store, reporter.id), content)
        reporter.outcome = summary(compressed)
        return []

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "sweep": self.sweep.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableJob":
        return cls(values["name"], lrcore.Sweep.from_dict(values["sweep"]))


class ReportingCells(CellFiles):
    """The cells of all table jobs, which share equal rows, with progress reports."""

    shared = False  # the reporter belongs to this process

    def __init__(self, folder: Path, reporter: Reporter, rows: int) -> None:
        super().__init__(folder)
        self._reporter, self._rows = reporter, rows

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report progress, except for the stage of the sweep: the record has parts."""
        if stage != "sweep":
            self._reporter.progress(stage, done, total)

    def finished(self, cell: SweepCell) -> list[SweepRow] | None:
        self._reporter.part = f"row {cell.number} of {self._rows}" if cell.steps else "dense model"
        self._reporter.add_log(f"{self._reporter.part}: {cell.title}")
        rows = super().finished(cell)
        if rows is not None:
            self._reporter.add_log("already saved")
        return rows

    def keep(self, cell: SweepCell, rows: list[SweepRow]) -> None:
        super().keep(cell, rows)
        for error in dict.fromkeys(row.error for row in rows if row.error):
            self._reporter.add_log(f"failed: {error}")


def tables_folder(store: Store) -> Path:
    """Return the folder with cells and rows of all tables."""
    return store.runs.folder / ".tables"


def rows_file(store: Store, job_id: str) -> Path:
    """Return the file with the rows of a job's table."""
    return tables_folder(store) / f"{job_id}.json"


def summary(rows: list[SweepRow]) -> str:
    """Return the number of rows, the number of failed rows, and the lowest perplexity."""
    measured = [(row.perplexity, row) for row in rows if row.perplexity is not None]
    failed = sum(row.error is not None for row in rows)
    parts = [f"{len(rows)} rows"] + ([f"{failed} failed"] if failed else [])
    if measured:
        perplexity, row = min(measured, key=lambda pair: pair[0])
        figure = numbers.perplexity(perplexity)
        if row.perplexity_error is not None:
            figure += f" ± {numbers.perplexity(row.perplexity_error)}"
        parts.append(f"lowest perplexity: {row.title}: {figure}")
    return "; ".join(parts)


def remove(store: Store, job_id: str) -> None:
    """Remove the record of a job that has ended and, if it was a table, its rows.

    The rows of single cells remain in `tables_folder`, since all tables share them.
    """
    removed = store.jobs.remove(job_id)
    if removed is not None and isinstance(removed.job, TableJob):
        rows_file(store, job_id).unlink(missing_ok=True)


def table_files(store: Store, job_id: str, job: TableJob) -> dict[str, str]:
    """Return {file name: text} for table.csv, table.json and report.html of a finished job.

    Raises InputError if the rows were deleted.
    """
    path = rows_file(store, job_id)
    if not path.is_file():
        raise lrcore.InputError("The rows of this table were deleted. Start the job again.")
    rows = [SweepRow.from_dict(row) for row in json.loads(path.read_text(encoding="utf-8"))]
    return sweep_tables(rows, job.sweep.to_dict())
