"""Runs on disk: one folder each, written under another name and then renamed, so that a run is there whole or not at all."""

import json
import os
import re
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lrcore

PARTIAL = ".partial-"


def root() -> Path:
    """Where runs live: LRCORE_RUNS, else ./runs; a folder for this user under the temporary one where that cannot be written."""
    wanted = Path(os.environ.get("LRCORE_RUNS") or "runs").expanduser()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError:
        fallback = Path(tempfile.gettempdir()) / f"low-rank-workbench-{os.getuid() if hasattr(os, 'getuid') else 'runs'}"
        fallback.mkdir(parents=True, exist_ok=True)
        return fallback


@dataclass(frozen=True)
class Run:
    """A finished compression: recipe.json, report.json and the checkpoint folder (which is what lrcore.save wrote)."""

    id: str
    folder: Path
    recipe: lrcore.Recipe
    report: dict[str, Any]

    @property
    def name(self) -> str:
        return self.report["name"]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def ranks_csv(self) -> str:
        return (self.checkpoint / "ranks.csv").read_text(encoding="utf-8")

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Newest last; each has `protocol`, `perplexity`, `dense_perplexity`."""
        return self.report.get("evaluations", [])


class Runs:
    """All runs under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for left in folder.glob(f"{PARTIAL}*"):  # a run whose writing was interrupted
            shutil.rmtree(left, ignore_errors=True)

    def write(self, name: str, recipe: lrcore.Recipe, model: lrcore.LoadedModel) -> Run:
        """Keep a compressed model as a run."""
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe.method}-{uuid.uuid4().hex[:4]}"
        partial = self.folder / f"{PARTIAL}{run_id}"
        partial.mkdir(parents=True)
        lrcore.save(model, partial / "checkpoint")
        (partial / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
        write_json(partial / "report.json", {"name": name, "created": time.time(), **model.report})
        os.replace(partial, self.folder / run_id)
        return self.get(run_id)

    def ids(self) -> list[str]:
        """Oldest first."""
        return sorted(path.parent.name for path in self.folder.glob("*/report.json") if not path.parent.name.startswith("."))

    def all(self) -> list[Run]:
        runs = []
        for run_id in self.ids():
            try:
                runs.append(self.get(run_id))
            except (ValueError, OSError, KeyError):  # a folder somebody else edited is left out, not a dead page
                continue
        return runs

    def get(self, run_id: str) -> Run:
        if not re.fullmatch(r"[\w-]+", run_id or "") or not (self.folder / run_id / "report.json").is_file():
            raise lrcore.InputError(f"No run '{run_id}'. It may have been deleted; choose another one under Runs & export.")
        folder = self.folder / run_id
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return Run(run_id, folder, lrcore.Recipe.read(folder / "recipe.json"), report)

    def rename(self, run_id: str, name: str) -> None:
        if not name.strip():
            raise lrcore.InputError("A run needs a name: type one and press Rename again.")
        self._change(run_id, name=name.strip()[:80])

    def delete(self, run_id: str) -> None:
        shutil.rmtree(self.get(run_id).folder)

    def add_evaluation(self, run_id: str, evaluation: dict[str, Any]) -> None:
        """Keep an evaluation; an earlier one under the same protocol is replaced."""
        others = [e for e in self.get(run_id).evaluations if e["protocol"] != evaluation["protocol"]]
        self._change(run_id, evaluations=[*others, evaluation])

    def stamp(self) -> str:
        """Changes whenever a run is added, removed or rewritten."""
        return ",".join(f"{i}:{(self.folder / i / 'report.json').stat().st_mtime_ns}" for i in self.ids())

    def _change(self, run_id: str, **changes: Any) -> None:
        run = self.get(run_id)
        write_json(run.folder / "report.json", run.report | changes)


def write_json(path: Path, values: Any) -> None:
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    partial.write_text(json.dumps(values, indent=2, default=float), encoding="utf-8")
    os.replace(partial, path)
