"""Jobs that write a run for other programs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import lrcore

from ..job import Job, Reporter
from ..store import Store


@dataclass(frozen=True)
class ExportJob(Job):
    """Write a run as a Hugging Face folder, anew each time: its name and measurements may have
    changed. run: its id. stock: as an architecture of transformers, without code of its own.
    """

    kind: ClassVar[str] = "export"
    once: ClassVar[bool] = True

    run_id: str
    stock: bool
    name: str = ""

    @property
    def title(self) -> str:
        return f"Export {self.name or self.run_id}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        export_run(store, self.run_id, self.stock, reporter)
        return []


@dataclass(frozen=True)
class PushJob(Job):
    """Export a run and upload the folder to a hub repository."""

    kind: ClassVar[str] = "push"

    run_id: str
    stock: bool
    repo: str
    private: bool
    name: str = ""

    @property
    def title(self) -> str:
        return f"Push {self.name or self.run_id} to {self.repo}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        folder = export_run(store, self.run_id, self.stock, reporter)
        reporter.progress("push", 0, 1)
        reporter.note(f"uploaded to {lrcore.push(folder, self.repo, self.private)}")
        reporter.progress("push", 1, 1)
        return []


def export_folder(run: lrcore.Run, stock: bool) -> Path:
    """Where exports of a run go: beside its checkpoint, so that they are deleted with it."""
    return run.folder / ("export-stock" if stock else "export")


def export_run(store: Store, run_id: str, stock: bool, reporter: Reporter) -> Path:
    """Write the folder and keep its place with the run's results."""
    run = store.runs.get(run_id)
    reporter.progress("export", 0, 1)
    folder = lrcore.export(
        replace(store.small(run), name=run.name),
        export_folder(run, stock),
        run.evaluations,
        stock,
        overwrite=True,
    )
    store.runs.add_result(run.id, "export", {"stock": stock}, {"folder": str(folder)})
    reporter.note(f"written to {folder}")
    reporter.progress("export", 1, 1)
    return folder
