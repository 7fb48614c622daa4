"""Jobs that write a run for other programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import lrcore

from ..job import Job, Reporter
from ..store import Store

PLACES = {  # in the folder of a run, by target: exports are deleted with it
    "transformers": "export",
    "transformers-stock": "export-stock",
    "vllm": "export-vllm",
    "mla": "export-mla",
    "llama.cpp": "export.gguf",
}


@dataclass(frozen=True)
class ExportJob(Job):
    """Write a run for a target, anew each time: its name and measurements may have changed.

    run_id: its id. target: one of PLACES.
    """

    kind: ClassVar[str] = "export"
    once: ClassVar[bool] = True

    run_id: str
    target: str
    name: str = ""

    @property
    def title(self) -> str:
        return f"Export {self.name or self.run_id}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        export_run(store, self.run_id, self.target, reporter)
        return []

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        return super().from_dict(with_target(values))


@dataclass(frozen=True)
class PushJob(Job):
    """Export a run and upload the folder to a hub repository."""

    kind: ClassVar[str] = "push"

    run_id: str
    target: str
    repo: str
    private: bool
    name: str = ""

    @property
    def title(self) -> str:
        return f"Push {self.name or self.run_id} to {self.repo}"

    def run(self, store: Store, reporter: Reporter) -> list[str]:
        folder = export_run(store, self.run_id, self.target, reporter)
        reporter.progress("push", 0, 1)
        reporter.note(f"uploaded to {lrcore.push(folder, self.repo, self.private)}")
        reporter.progress("push", 1, 1)
        return []

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        return super().from_dict(with_target(values))


def with_target(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record; those of earlier versions say whether the export is a stock one."""
    own = dict(values)
    if "stock" in own:
        own["target"] = "transformers-stock" if own.pop("stock") else "transformers"
    return own


def export_run(store: Store, run_id: str, target: str, reporter: Reporter) -> Path:
    """Write the folder or file and keep its place with the run's results."""
    run = store.runs.get(run_id)
    reporter.progress("export", 0, 1)
    small = replace(store.small(run), name=run.name)
    path, notes = WRITERS.get(target, _folder)(small, run, target)
    store.runs.add_result(run.id, "export", {"target": target}, {"folder": str(path)})
    for note in (*notes, f"written to {path}"):
        reporter.note(note)
    reporter.progress("export", 1, 1)
    return path


Written = tuple[Path, tuple[str, ...]]


def _folder(small: lrcore.LoadedModel, run: lrcore.Run, target: str) -> Written:
    place = run.folder / PLACES[target]
    written = lrcore.export_for(small, place, target, run.evaluations, overwrite=True)
    return written.path, written.notes


def _latent(small: lrcore.LoadedModel, run: lrcore.Run, target: str) -> Written:
    place = run.folder / PLACES[target]
    written = lrcore.export_mla(small, place, run.evaluations, overwrite=True)
    return written.path, written.notes


def _gguf(small: lrcore.LoadedModel, run: lrcore.Run, target: str) -> Written:
    written = lrcore.export_gguf(small, run.folder / PLACES[target])
    return written.path, written.notes


WRITERS: Mapping[str, Callable[[lrcore.LoadedModel, lrcore.Run, str], Written]] = {
    "mla": _latent,
    "llama.cpp": _gguf,
}
