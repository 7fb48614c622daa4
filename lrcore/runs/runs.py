"""Runs: checkpoints as folders, and a small database of their names, tags, recipes, results and
samples.

Several processes can use the same folder at the same time. The folders determine which runs exist:
a folder without a row in the database is added with the contents of its report, and a row without a
folder is deleted.
"""

import os
import re
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..layers.account import SizeAndCost
from ..models.weights import read_json
from ..recipes.history import (
    Compressed,
    ExpertsPruned,
    LayersDropped,
    S,
    SharedBases,
    Sliced,
    Sparsified,
    Step,
    last_step,
)
from ..recipes.provenance import BaseModel, Provenance
from ..recipes.recipe import Recipe
from ..system.as_json import json_text
from ..system.errors import InputError, ResourceError, quoted
from ..system.files import MARK, folder_draft_of, make_folder, remove_leftovers, temporary_sibling
from ..system.path_access import expanded
from ..system.resource_errors import resource_error
from .database import Database, Row, is_date

if TYPE_CHECKING:
    from ..models.load import LoadedModel

# Errors of reading a folder that was edited by hand.
UNREADABLE = (ValueError, OSError, KeyError, TypeError, RecursionError)
_Record = tuple[Recipe, Provenance]
# Steps without a rank plan: the name of the command, and the field that names the criterion.
STEPS_WITHOUT_RANKS: dict[type[Any], tuple[str, str]] = {
    Sliced: ("slice", "rotations"),
    LayersDropped: ("prune-layers", "by"),
    ExpertsPruned: ("prune-experts", "by"),
    Sparsified: ("sparsify", "criterion"),
    SharedBases: ("share", "group"),
}
TEXT_FIELDS = Recipe.fields_of("source", "windows")


def runs_folder() -> Path:
    """Return the folder of the runs: LRCORE_RUNS, or ./runs by default.

    If it is not writable, a folder of this user in the temporary folder is used, with a note on
    standard error at the first use. A full disk is not a reason for this fallback.
    """
    folder = expanded(os.environ.get("LRCORE_RUNS") or "runs")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if isinstance(resource_error(error), ResourceError):
            return folder
        user = os.getuid() if hasattr(os, "getuid") else "runs"
        fallback = Path(tempfile.gettempdir()) / f"low-rank-workbench-{user}"
        fallback.mkdir(parents=True, exist_ok=True)
        _report_fallback(folder, fallback)
        return fallback


@cache
def _report_fallback(folder: Path, fallback: Path) -> None:
    print(
        f"note: '{folder}' is not writable; runs are stored in '{fallback}'. Set LRCORE_RUNS to "
        "choose another folder.",
        file=sys.stderr,
    )


def step_without_ranks(
    history: Sequence[Step],
) -> ExpertsPruned | Sliced | LayersDropped | Sparsified | SharedBases | None:
    """Return the step that made a model which has no rank plan, such as `Sliced`; else None."""
    if last_step(history, Compressed) is not None:
        return None
    steps = (last_step(history, kind) for kind in STEPS_WITHOUT_RANKS)
    return next((step for step in steps if step is not None), None)


def method_and_policy(recipe: Recipe, history: Sequence[Step]) -> tuple[str, str]:
    """Return the names of method and policy; for a step without ranks, the step and its criterion.

    Tables show both in the same columns.
    """
    step = step_without_ranks(history)
    if step is None:
        return recipe.method, recipe.policy
    method, criterion = STEPS_WITHOUT_RANKS[type(step)]
    return method, str(getattr(step, criterion))


def run_fields(recipe: Recipe, history: Sequence[Step]) -> dict[str, Any]:
    """Return the settings of a run by field.

    For a step without ranks, these are the settings of the step and the fields of the recipe that
    select the calibration text.
    """
    step, values = step_without_ranks(history), recipe.to_dict()
    if step is None:
        return values
    _, criterion = STEPS_WITHOUT_RANKS[type(step)]
    settings = {
        f"{step.kind}: {name}": value
        for name, value in step.fields_dict().items()
        if not isinstance(value, dict) and value is not None and name != criterion
    }
    labels = dict(zip(("method", "policy"), method_and_policy(recipe, history), strict=True))
    return {name: values[name] for name in TEXT_FIELDS} | labels | settings


@dataclass(frozen=True)
class Run:
    """A finished model.

    folder contains the checkpoint, either in its subfolder "checkpoint" or directly. recipe: the
    requested compression. provenance: the steps applied to the model. evaluations: results of kind
    "evaluation", newest last.
    """

    id: str
    name: str
    created: float
    folder: Path
    recipe: Recipe
    provenance: Provenance
    tags: tuple[str, ...]
    evaluations: list[dict[str, Any]]

    @property
    def history(self) -> tuple[Step, ...]:
        """Return the steps applied to the model."""
        return self.provenance.history

    @property
    def account(self) -> SizeAndCost | None:
        """Return the size and cost of the model and of its base."""
        return self.provenance.account

    @property
    def base(self) -> BaseModel | None:
        """Return the dense model that was compressed."""
        return self.provenance.base

    def step(self, kind: type[S]) -> S | None:
        """Return the last step of a kind, such as `Healed`; None if it is missing."""
        return last_step(self.history, kind)

    @property
    def checkpoint(self) -> Path:
        inner = self.folder / "checkpoint"
        return inner if inner.is_dir() else self.folder

    @property
    def ranks_csv(self) -> str:
        """Return the ranks as CSV; "" if the model has no rank plan."""
        file = self.checkpoint / "ranks.csv"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def method(self) -> str:
        """Return the method of the recipe, or the name of the step that changed the complete model,
        such as "prune-layers".
        """
        return method_and_policy(self.recipe, self.history)[0]

    @property
    def policy(self) -> str:
        """Return the policy that allocated the ranks, or the criterion of the step that changed the
        complete model.
        """
        return method_and_policy(self.recipe, self.history)[1]

    @property
    def fields(self) -> dict[str, Any]:
        """Return the settings of the run by field, see `run_fields`."""
        return run_fields(self.recipe, self.history)


class Runs:
    """All runs of a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise InputError(
                f"{quoted(str(folder))} cannot store runs: it is a file, or it cannot be created. "
                "Choose another folder (--folder, LRCORE_RUNS)."
            ) from error
        # leftovers of interrupted writes and deletions; running processes have locked theirs
        remove_leftovers(self.folder)
        self._database = Database(self.folder / "runs.sqlite")
        # a stamp and the rows at that stamp, in a single value because threads share it
        self._rows: tuple[str, dict[str, str]] = "", {}
        self._building = threading.Lock()
        self._runs: tuple[str, list[Run]] = "", []  # a stamp and the runs at that stamp
        # recipes and provenances by (id, created); they never change
        self._records: dict[tuple[str, float], _Record] = {}

    # --- listing ---

    def ids(self) -> list[str]:
        """Return the ids of all runs, oldest first."""
        self._sync_database()
        return list(self._folders_by_id())

    def all(self, tag: str | None = None) -> list[Run]:
        """Return all runs, or those with a tag, oldest first.

        Runs whose recipe this version cannot read are omitted. Recipes and reports are read only
        once.
        """
        with self._building:  # a second thread waits and uses the result of the first
            stamp, (last_stamp, runs) = self.stamp(), self._runs
            if stamp != last_stamp:
                runs = self._read_all()
                self._runs = stamp, runs
        return [run for run in runs if tag is None or tag in run.tags]

    def _read_all(self) -> list[Run]:
        rows, tags = self._database.list_runs(), self._database.all_tags()
        evaluations = self._database.all_results("evaluation")
        records = self._read_records([(run_id, created) for run_id, _, created, _ in rows])
        return [
            Run(
                run_id,
                name,
                created,
                self.folder / folder,
                *records[run_id, created],
                tags.get(run_id, ()),
                evaluations.get(run_id, []),
            )
            for run_id, name, created, folder in rows
            if (run_id, created) in records
        ]

    def _read_records(self, keys: Sequence[tuple[str, float]]) -> dict[tuple[str, float], _Record]:
        """Return recipe and provenance of runs by (id, created); unreadable runs are omitted."""
        records = {key: self._records[key] for key in keys if key in self._records}
        missing = dict(key for key in keys if key not in records)
        for row in self._database.get_all(list(missing)):
            with suppress(*UNREADABLE):
                record = Recipe.from_dict(row.recipe), Provenance.from_dict(row.report)
                records[row.id, missing[row.id]] = record
        self._records = records
        return records

    def get(self, run_id: str) -> Run:
        """Return the run with an id. Raises InputError if it is missing."""
        row = self._database.get(run_id)
        if row is None:
            raise InputError(
                f"No run has the id '{run_id}'; it may have been deleted. Choose another run "
                "under Runs & export."
            )
        return Run(
            run_id,
            row.name,
            row.created,
            self.folder / row.folder,
            Recipe.from_dict(row.recipe),
            Provenance.from_dict(row.report),
            self._database.tags(run_id),
            self.results(run_id, "evaluation"),
        )

    def find(self, name: str) -> Run:
        """Return a run by id, the beginning of an id, or name.

        Raises InputError if no run or several runs match.
        """
        if not name.strip():
            raise InputError("No run name given. `runs` lists the runs with their ids.")
        matches = [
            run
            for run in self.all()
            if run.id == name or run.name == name or run.id.startswith(name)
        ]
        exact = [run for run in matches if run.id == name] or matches
        if len(exact) != 1:
            state = "No run matches" if not exact else f"{len(exact)} runs match"
            raise InputError(
                f"{state} {quoted(name)} in '{self.folder}'. `runs` lists the runs with their ids."
            )
        return exact[0]

    def stamp(self) -> str:
        """Return a value that changes whenever a process adds, deletes or changes a run."""
        self._sync_database()
        return self._database.stamp()

    def _sync_database(self) -> None:
        """Add run folders that the database lacks, such as copied ones, and delete runs without
        a folder.
        """
        # The database is read before the folders. In the reverse order, a run that another process
        # adds in between would seem to have no folder and would lose its results.
        registered, folders = self._folders_by_id(), self._folders()
        unregistered = sorted(folders - registered.keys())
        if new := [row for run_id in unregistered for row in self._rows_of_folder(run_id)]:
            self._database.insert(new)
        deleted = [
            run_id
            for run_id, folder in registered.items()
            if folder == run_id and run_id not in folders
        ]
        if deleted:
            self._database.delete(deleted)

    def _rows_of_folder(self, run_id: str) -> Iterator[Row]:
        """Return the row of a run's folder; no row if the folder cannot be read."""
        folder = self.folder / run_id
        with suppress(*UNREADABLE):
            report = read_json(folder / "report.json")
            recipe, modified = Recipe.read(folder / "recipe.json"), folder.stat().st_mtime
            name, created = report["name"], report.get("created", modified)
            _check_text(run_id, name)
            if not is_date(created):
                raise ValueError(created)
            yield _row(run_id, name, float(created), run_id, recipe, report)

    def _folders(self) -> set[str]:
        """Return the names of all run folders.

        The contents of the folders are not read, which would be slow for thousands of runs.
        """
        with os.scandir(self.folder) as entries:
            return {entry.name for entry in entries if entry.name[0] != "." and entry.is_dir()}

    def _folders_by_id(self) -> dict[str, str]:
        """Return {id: folder} of all runs in the database, read again only if the database has
        changed.
        """
        stamp, rows = self._database.stamp(), self._rows
        if stamp != rows[0]:
            self._rows = rows = stamp, self._database.folders()
        return rows[1]

    # --- changes ---

    def write(self, name: str, recipe: Recipe, model: "LoadedModel") -> Run:
        """Save a model made by a recipe as a run. Its folder appears only when it is complete."""
        from ..checkpoints.checkpoint import save  # imports transformers, not needed for listing

        run_id = _new_id(method_and_policy(recipe, model.history)[0])
        with folder_draft_of(self.folder / run_id) as draft:
            save(model, draft / "checkpoint")
            report = {"name": name, "created": time.time(), **model.provenance.to_dict()}
            (draft / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
            (draft / "report.json").write_text(
                json_text(report, indent=2, default=float, nulls=True), encoding="utf-8"
            )
        self._sync_database()
        return self.get(run_id)

    def add(self, folder: str | Path, name: str = "") -> Run:
        """Add a checkpoint in a different folder, such as an output of the command line, without
        moving its files.

        Raises InputError if the folder does not contain a compressed model.
        """
        folder = expanded(folder).absolute()
        if (
            not (folder / MARK).is_file()
            or not (folder / "report.json").is_file()
            or not (folder / "recipe.json").is_file()
        ):
            raise InputError(
                f"'{folder}' is not a compressed model: it lacks {MARK}, report.json or "
                "recipe.json. Give a folder written by `compress`."
            )
        recipe = Recipe.read(folder / "recipe.json")
        report = read_json(folder / "report.json")
        _check_text(name, str(folder))
        run_id = _new_id(method_and_policy(recipe, Provenance.from_dict(report).history)[0])
        row = _row(run_id, name or folder.name, time.time(), str(folder), recipe, report)
        self._database.insert([row])
        return self.get(run_id)

    def rename(self, run_id: str, name: str) -> None:
        """Change the name of a run, cut at 80 characters. Raises InputError for an empty name."""
        if not name.strip():
            raise InputError("The name is empty. Enter a name and press Rename again.")
        _check_text(name)
        self._database.rename(self.get(run_id).id, name.strip()[:80])

    def tag(self, run_id: str, tag: str) -> None:
        """Add a tag to a run. Raises InputError for characters that are not allowed in tags."""
        if not re.fullmatch(r"[\w.+-]{1,40}", tag):
            raise InputError(
                f"{quoted(tag)} is not a valid tag; use at most 40 letters, digits, '.', '+', '_' "
                "and '-'."
            )
        self._database.tag(self.get(run_id).id, tag)

    def untag(self, run_id: str, tag: str) -> None:
        self._database.untag(self.get(run_id).id, tag)

    def delete(self, run_id: str) -> None:
        """Delete a run and its folder; the folder of a run that was added by `add` remains."""
        folder = self.get(run_id).folder
        if folder.parent == self.folder and folder.is_dir():
            trash = temporary_sibling(folder)
            os.replace(folder, trash)  # atomic, so that no run is partially deleted
            shutil.rmtree(trash, ignore_errors=True)
        self._database.delete([run_id])

    def discard(self, run_id: str) -> None:
        """Delete a run like `delete`, but so that `restore` can undo it until the next `discard` or
        `empty_trash`.
        """
        folder = self.get(run_id).folder
        self.empty_trash()
        self._database.hide(run_id)  # first, so that its results are not lost without the folder
        if folder.parent == self.folder and folder.is_dir():
            make_folder(self._trash)
            os.replace(folder, self._trash / run_id)

    def restore(self, run_id: str) -> Run:
        """Undo `discard`. Raises InputError if the run is no longer in the trash."""
        if run_id in self._database.hidden():
            if (self._trash / run_id).is_dir():
                os.replace(self._trash / run_id, self.folder / run_id)
            if self._database.unhide(run_id):
                return self.get(run_id)
        raise InputError("This run was deleted permanently and cannot be restored.")

    def empty_trash(self) -> None:
        """Delete discarded runs permanently."""
        self._database.delete(self._database.hidden())
        shutil.rmtree(self._trash, ignore_errors=True)

    @property
    def _trash(self) -> Path:
        return self.folder / ".deleted"

    # --- results and samples ---

    def add_evaluation(self, run_id: str, evaluation: dict[str, Any]) -> None:
        """Store an evaluation; an earlier evaluation under the same protocol is replaced."""
        self.add_result(run_id, "evaluation", evaluation["protocol"], evaluation)

    def add_result(
        self, run_id: str, kind: str, protocol: dict[str, Any], data: dict[str, Any]
    ) -> None:
        """Store a result ("evaluation", "comparison", "tasks", "cost", ...) in place of the
        previous result of the same kind and protocol.
        """
        self._database.add_result(self.get(run_id).id, kind, protocol, data)

    def results(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Return the results of a kind, newest last."""
        return self._database.results(run_id, kind)

    def add_samples(self, run_id: str, samples: Sequence[dict[str, Any]]) -> None:
        """Store generated texts, each with prompt, text and settings."""
        self._database.add_samples(self.get(run_id).id, samples)

    def samples(self, run_id: str) -> list[dict[str, Any]]:
        """Return the samples, oldest first."""
        return self._database.samples(run_id)


def _row(
    run_id: str,
    name: str,
    created: float,
    folder: str,
    recipe: Recipe,
    report: Mapping[str, Any],
) -> Row:
    evaluations = report.get("evaluations", [])
    if not isinstance(evaluations, list) or not all(map(_is_evaluation, evaluations)):
        raise InputError(
            f"The report in '{folder}' has an invalid evaluation; the file was changed or "
            "truncated. Copy it again."
        )
    report = {key: value for key, value in report.items() if key != "evaluations"}
    return Row(run_id, name, created, folder, recipe.to_dict(), report, evaluations)


def _is_evaluation(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("protocol"), Mapping)


def _check_text(*names: str) -> None:
    """Raise InputError for a name that the database cannot store, TypeError for a value that is not
    a text.
    """
    for name in names:
        try:
            str.encode(name)
        except UnicodeEncodeError as error:
            raise InputError(
                f"{quoted(name)} is not valid UTF-8 text. Choose another name."
            ) from error


def _new_id(method: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{uuid.uuid4().hex[:4]}"
