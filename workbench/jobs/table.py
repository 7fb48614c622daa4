"""A sweep of rows of steps, such as a table of a paper, as one job: what the command line's `sweep`
does, cells and tables under the folder of the runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lrcore

from .. import numbers
from ..job import Job, Reporter
from ..store import Store
from .measuring import load_dense


@dataclass(frozen=True)
class TableJob(Job):
    """Every row of a sweep, made and measured; no model is kept. name: of the table."""

    kind: ClassVar[str] = "table"

    name: str
    sweep: lrcore.Sweep

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.sweep.cells())} rows on {self.sweep.base.model}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        """A row that cannot be made is a row with the reason. Raises InputError where none can."""
        dense = load_dense(store, self.sweep.base, reporter)
        for one in self.sweep.evaluations:
            lrcore.check_evaluation(dense, one)
        cells = ReportedCells(folder(store), reporter, len(self.sweep.cells()))
        rows = lrcore.run_sweep(dense, self.sweep, cells, cells.progress)
        made = [row for row in rows if row.method != "dense"]
        if all(row.error for row in made):
            raise lrcore.InputError(str(made[0].error))
        content = lrcore.json_text([row.to_dict() for row in rows], nulls=True)
        lrcore.write_text(folder(store) / f"{reporter.id}.json", content)
        reporter.outcome = lowest(made)
        return []

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "sweep": self.sweep.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableJob":
        return cls(values["name"], lrcore.Sweep.from_dict(values["sweep"]))


class ReportedCells(lrcore.CellFiles):
    """The cells of all such jobs: a row that two tables have is made once."""

    shared = False  # the reporter is of this process

    def __init__(self, folder: Path, reporter: Reporter, rows: int) -> None:
        super().__init__(folder)
        self._reporter, self._rows = reporter, rows

    def progress(self, stage: str, done: int, total: int) -> None:
        """Without the sweep's own stage: the record names the part instead."""
        if stage != "sweep":
            self._reporter.progress(stage, done, total)

    def finished(self, cell: lrcore.Cell) -> list[lrcore.SweepRow] | None:
        self._reporter.part = f"row {cell.number} of {self._rows}" if cell.steps else "dense model"
        self._reporter.note(f"{self._reporter.part}: {cell.title}")
        rows = super().finished(cell)
        if rows is not None:
            self._reporter.note("there already")
        return rows

    def keep(self, cell: lrcore.Cell, rows: list[lrcore.SweepRow]) -> None:
        super().keep(cell, rows)
        for error in dict.fromkeys(row.error for row in rows if row.error):
            self._reporter.note(f"not made: {error}")


def folder(store: Store) -> Path:
    """Where the cells and the rows of every table are."""
    return store.runs.folder / ".tables"


def lowest(rows: list[lrcore.SweepRow]) -> str:
    """How many rows there are, how many could not be made, and that of the lowest perplexity."""
    known = [(row.perplexity, row) for row in rows if row.perplexity is not None]
    failed = sum(row.error is not None for row in rows)
    words = [f"{len(rows)} rows"] + ([f"{failed} could not be made"] if failed else [])
    if known:
        perplexity, row = min(known, key=lambda one: one[0])
        figure = numbers.perplexity(perplexity)
        if row.perplexity_error is not None:
            figure += f" ± {numbers.perplexity(row.perplexity_error)}"
        words.append(f"lowest perplexity: {row.title}: {figure}")
    return "; ".join(words)


def written(store: Store, job_id: str, job: TableJob) -> dict[str, str]:
    """{file name: text} of table.csv, table.json and report.html of a finished job.

    Raises InputError where its rows are gone.
    """
    path = folder(store) / f"{job_id}.json"
    if not path.is_file():
        raise lrcore.InputError("The rows of this table are gone: start the job again.")
    rows = [lrcore.SweepRow.from_dict(row) for row in json.loads(path.read_text(encoding="utf-8"))]
    return lrcore.sweep_tables(rows, job.sweep.to_dict())
