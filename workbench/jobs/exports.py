"""Jobs that export a run for other programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import lrcore
from lrcore.checkpoints.export import export_for
from lrcore.runs.runs import Run

from .. import words
from ..state.job import Job, Reporter
from ..state.store import Store

EXPORT_PATHS = {  # by target, in the folder of a run, so that exports are deleted with the run
    "transformers": "export",
    "transformers-stock": "export-stock",
    "vllm": "export-vllm",
    "mla": "export-mla",
    "llama.cpp": "export.gguf",
}


@dataclass(frozen=True)
class ExportJob(Job):
    """Export of a run. A former export is replaced, because name and measurements can change.

    target: a key of EXPORT_PATHS. name: current name of the run.
    """

    kind: ClassVar[str] = "export"
    is_unique: ClassVar[bool] = True

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
        return super().from_dict(read_target(values))


@dataclass(frozen=True)
class PushJob(Job):
    """Export of a run, and upload of the folder to a hub repository."""

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
        reporter.add_log(f"uploaded to {lrcore.push(folder, self.repo, self.private)}")
        reporter.progress("push", 1, 1)
        return []

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        return super().from_dict(read_target(values))


def exported_path(run: Run, target: str) -> Path:
    """Return the folder or file of an export. Raises InputError if it does not exist."""
    path = run.folder / EXPORT_PATHS[target] if target in EXPORT_PATHS else None
    if path is None or not path.exists():
        raise lrcore.InputError(words.compare_and_runs.NOT_EXPORTED)
    return path


def read_target(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record; earlier versions had "stock" instead of "target"."""
    current = dict(values)
    if "stock" in current:
        current["target"] = "transformers-stock" if current.pop("stock") else "transformers"
    return current


def export_run(store: Store, run_id: str, target: str, reporter: Reporter) -> Path:
    """Write the folder or file, store its path with the run, and return it."""
    run = store.runs.get(run_id)
    reporter.progress("export", 0, 1)
    small = replace(store.run_model(run), name=run.name)
    path, notes = WRITERS.get(target, _folder)(small, run, target)
    store.runs.add_result(run.id, "export", {"target": target}, {"folder": str(path)})
    for note in (*notes, f"written to {path}"):
        reporter.add_log(note)
    reporter.progress("export", 1, 1)
    return path


Export = tuple[Path, tuple[str, ...]]


def _folder(small: lrcore.LoadedModel, run: Run, target: str) -> Export:
    path = run.folder / EXPORT_PATHS[target]
    exported = export_for(small, path, target, run.evaluations, overwrite=True)
    return exported.path, exported.notes


def _latent(small: lrcore.LoadedModel, run: Run, target: str) -> Export:
    path = run.folder / EXPORT_PATHS[target]
    exported = lrcore.export_mla(small, path, run.evaluations, overwrite=True)
    return exported.path, exported.notes


def _gguf(small: lrcore.LoadedModel, run: Run, target: str) -> Export:
    exported = lrcore.export_gguf(small, run.folder / EXPORT_PATHS[target])
    return exported.path, exported.notes


WRITERS: Mapping[str, Callable[[lrcore.LoadedModel, Run, str], Export]] = {
    "mla": _latent,
    "llama.cpp": _gguf,
}
