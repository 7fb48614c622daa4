"""Runs: checkpoints as folders, and a small database of their names, tags, recipes, results and
samples.

Several processes may use one folder at once. The folders are the truth about which runs there are:
one that the database does not know is taken up, with what its report holds; one that is gone is
forgotten.
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

from ..account import SizeAndCost
from ..as_json import json_text
from ..errors import InputError, Shortage, quoted
from ..files import MARK, beside, folder_draft_of, remove_leftovers, remove_unlocked
from ..history import S, Step, last_step
from ..models.weights import read_json
from ..places import expanded
from ..provenance import BaseModel, Provenance
from ..recipe import Recipe
from ..shortage import shortage
from .database import Database, Row, is_date
from .making import fields, method_and_policy

if TYPE_CHECKING:
    from ..models.load import LoadedModel

PARTIAL = ".partial-"  # what earlier versions called a run that is being written
UNREADABLE = (
    ValueError,
    OSError,
    KeyError,
    TypeError,
    RecursionError,
)  # what a folder that somebody else edited may lead to
_Made = tuple[Recipe, Provenance]


def root() -> Path:
    """Where runs live: LRCORE_RUNS, else ./runs; a folder for this user under the temporary one
    where that may not be written, which is said once. One whose disk is full is it all the same.
    """
    wanted = expanded(os.environ.get("LRCORE_RUNS") or "runs")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError as error:
        if isinstance(shortage(error), Shortage):
            return wanted
        user = os.getuid() if hasattr(os, "getuid") else "runs"
        fallback = Path(tempfile.gettempdir()) / f"low-rank-workbench-{user}"
        fallback.mkdir(parents=True, exist_ok=True)
        _say_spare(wanted, fallback)
        return fallback


@cache
def _say_spare(wanted: Path, fallback: Path) -> None:
    print(
        f"note: '{wanted}' cannot be written; runs are kept in '{fallback}'. LRCORE_RUNS names "
        "another.",
        file=sys.stderr,
    )


@dataclass(frozen=True)
class Run:
    """A finished model.

    folder holds the checkpoint, as a folder in it or itself. recipe: what was to be done.
    provenance: what happened to the model. evaluations: results of kind "evaluation", newest last.
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
        """What happened to the model, step by step."""
        return self.provenance.history

    @property
    def account(self) -> SizeAndCost | None:
        """What the model weighs and costs beside its base."""
        return self.provenance.account

    @property
    def base(self) -> BaseModel | None:
        """The dense model that it was made of."""
        return self.provenance.base

    def step(self, kind: type[S]) -> S | None:
        """The last step of a kind, such as `Healed`; None where there is none."""
        return last_step(self.history, kind)

    @property
    def checkpoint(self) -> Path:
        inner = self.folder / "checkpoint"
        return inner if inner.is_dir() else self.folder

    @property
    def ranks_csv(self) -> str:
        """Its ranks; "" where none made it."""
        file = self.checkpoint / "ranks.csv"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def method(self) -> str:
        """The recipe's method, or what was done to the whole model, such as "shorten"."""
        return method_and_policy(self.recipe, self.history)[0]

    @property
    def policy(self) -> str:
        """What shared the ranks, or what chose the layers that went."""
        return method_and_policy(self.recipe, self.history)[1]

    @property
    def fields(self) -> dict[str, Any]:
        """What it was made by, field by field: see `making.fields`."""
        return fields(self.recipe, self.history)


class Runs:
    """All runs of one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise InputError(
                f"{quoted(str(folder))} cannot hold runs: it is a file, lies below one, or no "
                "folder can be made there. Give another (--folder, LRCORE_RUNS)."
            ) from error
        # writings and deletings that were interrupted: of a living process they are locked
        remove_leftovers(self.folder)
        for left in self.folder.glob(f"{PARTIAL}*"):
            remove_unlocked(left)
        self._database = Database(self.folder / "runs.sqlite")
        # one value, as threads share it: a stamp, and the rows that were there then
        self._rows: tuple[str, dict[str, str]] = "", {}
        self._building = threading.Lock()
        self._all: tuple[str, list[Run]] = "", []  # a stamp, and the runs that were there then
        # recipes and provenances that were read, by id and creation: they never change
        self._read: dict[tuple[str, float], _Made] = {}

    # --- what there is ---

    def ids(self) -> list[str]:
        """Oldest first."""
        self._take_stock()
        return list(self._known())

    def all(self, tag: str | None = None) -> list[Run]:
        """Oldest first; only those with a tag, where one is given.

        Runs with a recipe that this version cannot read are left out. Nothing is read again that
        was read before.
        """
        with self._building:  # who comes second waits, and finds them
            stamp, (known_stamp, runs) = self.stamp(), self._all
            if stamp != known_stamp:
                runs = self._built()
                self._all = stamp, runs
        return [run for run in runs if tag is None or tag in run.tags]

    def _built(self) -> list[Run]:
        heads, tags = self._database.heads(), self._database.all_tags()
        evaluations = self._database.all_results("evaluation")
        read = self._parsed([(run_id, created) for run_id, _, created, _ in heads])
        return [
            Run(
                run_id,
                name,
                created,
                self.folder / folder,
                *read[run_id, created],
                tags.get(run_id, ()),
                evaluations.get(run_id, []),
            )
            for run_id, name, created, folder in heads
            if (run_id, created) in read
        ]

    def _parsed(self, there: Sequence[tuple[str, float]]) -> dict[tuple[str, float], _Made]:
        """How runs were made, by id and creation; without those that this version cannot read."""
        read = {key: self._read[key] for key in there if key in self._read}
        created = {run_id: at for run_id, at in there if (run_id, at) not in read}
        for row in self._database.get_all(list(created)):
            with suppress(*UNREADABLE):
                made = Recipe.from_dict(row.recipe), Provenance.from_dict(row.report)
                read[row.id, created[row.id]] = made
        self._read = read
        return read

    def get(self, run_id: str) -> Run:
        """Raises InputError for an id that is not there."""
        row = self._database.get(run_id)
        if row is None:
            raise InputError(
                f"No run '{run_id}'. It may have been deleted; choose another one under Runs & "
                "export."
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
        """A run by its id, the beginning of its id, or its name.

        Raises InputError where none or several fit.
        """
        if not name.strip():
            raise InputError("A run was named by nothing. `runs` lists them with their ids.")
        fitting = [
            run
            for run in self.all()
            if run.id == name or run.name == name or run.id.startswith(name)
        ]
        exact = [run for run in fitting if run.id == name] or fitting
        if len(exact) != 1:
            state = "No run is" if not exact else f"{len(exact)} runs are"
            raise InputError(
                f"{state} called {quoted(name)} in '{self.folder}'. `runs` lists them with their "
                "ids."
            )
        return exact[0]

    def stamp(self) -> str:
        """Changes whenever a run is added, removed or changed, by whichever process."""
        self._take_stock()
        return self._database.stamp()

    def _take_stock(self) -> None:
        """Take up run folders that the database lacks, such as those of earlier versions, and
        forget runs whose folder is gone.
        """
        # The database first: its runs were folders before. The other way round, a run that somebody
        # keeps in between would count as gone and lose its results.
        known, there = self._known(), self._folders()
        unknown = sorted(there - known.keys())
        if new := [row for run_id in unknown for row in self._taken_up(run_id)]:
            self._database.insert(new)
        gone = [
            run_id for run_id, folder in known.items() if folder == run_id and run_id not in there
        ]
        if gone:
            self._database.delete(gone)

    def _taken_up(self, run_id: str) -> Iterator[Row]:
        """The row of a run's folder; nothing where that cannot be read."""
        folder = self.folder / run_id
        with suppress(*UNREADABLE):
            report = read_json(folder / "report.json")
            recipe, made = Recipe.read(folder / "recipe.json"), folder.stat().st_mtime
            name, created = report["name"], report.get("created", made)
            _check_text(run_id, name)
            if not is_date(created):
                raise ValueError(created)
            yield _row(run_id, name, float(created), run_id, recipe, report)

    def _folders(self) -> set[str]:
        """The names of all run folders. The files in them are not looked at, which would be slow
        for thousands of runs.
        """
        with os.scandir(self.folder) as entries:
            return {one.name for one in entries if one.name[0] != "." and one.is_dir()}

    def _known(self) -> dict[str, str]:
        """{id: folder} of every run of the database, read again where it has changed."""
        stamp, rows = self._database.stamp(), self._rows
        if stamp != rows[0]:
            self._rows = rows = stamp, self._database.folders()
        return rows[1]

    # --- changes ---

    def write(self, name: str, recipe: Recipe, model: "LoadedModel") -> Run:
        """Keep a model made by a recipe as a run: its folder is there whole or not at all."""
        from ..checkpoints.checkpoint import save  # takes transformers, which no listing needs

        run_id = _new_id(method_and_policy(recipe, model.history)[0])
        with folder_draft_of(self.folder / run_id) as draft:
            save(model, draft / "checkpoint")
            report = {"name": name, "created": time.time(), **model.provenance.to_dict()}
            (draft / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
            (draft / "report.json").write_text(
                json_text(report, indent=2, default=float, nulls=True), encoding="utf-8"
            )
        self._take_stock()
        return self.get(run_id)

    def add(self, folder: str | Path, name: str = "") -> Run:
        """Take up a checkpoint that lies elsewhere, such as one that the command line wrote; its
        files stay where they are. Raises InputError for a folder that holds none.
        """
        folder = expanded(folder).absolute()
        if (
            not (folder / MARK).is_file()
            or not (folder / "report.json").is_file()
            or not (folder / "recipe.json").is_file()
        ):
            raise InputError(
                f"'{folder}' is no compressed model ({MARK}, report.json and recipe.json). Give a "
                "folder that `compress` wrote."
            )
        recipe = Recipe.read(folder / "recipe.json")
        report = read_json(folder / "report.json")
        _check_text(name, str(folder))
        run_id = _new_id(method_and_policy(recipe, Provenance.from_dict(report).history)[0])
        own = _row(run_id, name or folder.name, time.time(), str(folder), recipe, report)
        self._database.insert([own])
        return self.get(run_id)

    def rename(self, run_id: str, name: str) -> None:
        """Give a run another name, cut at 80 characters. Raises InputError for an empty one."""
        if not name.strip():
            raise InputError("A run needs a name: type one and press Rename again.")
        _check_text(name)
        self._database.rename(self.get(run_id).id, name.strip()[:80])

    def tag(self, run_id: str, tag: str) -> None:
        """Add a tag to a run. Raises InputError for characters that tags do not have."""
        if not re.fullmatch(r"[\w.+-]{1,40}", tag):
            raise InputError(
                f"{quoted(tag)} is no tag: use letters, digits, '.', '+', '_' and '-', at most 40."
            )
        self._database.tag(self.get(run_id).id, tag)

    def untag(self, run_id: str, tag: str) -> None:
        self._database.untag(self.get(run_id).id, tag)

    def delete(self, run_id: str) -> None:
        """Forget a run and remove its folder; the folder of one that was only taken up (`add`)
        stays.
        """
        folder = self.get(run_id).folder
        if folder.parent == self.folder and folder.is_dir():
            aside = beside(folder)
            os.replace(folder, aside)  # gone at once: what is half removed is no run
            shutil.rmtree(aside, ignore_errors=True)
        self._database.delete([run_id])

    # --- results and samples ---

    def add_evaluation(self, run_id: str, evaluation: dict[str, Any]) -> None:
        """Keep an evaluation; an earlier one under the same protocol is replaced."""
        self.add_result(run_id, "evaluation", evaluation["protocol"], evaluation)

    def add_result(
        self, run_id: str, kind: str, protocol: dict[str, Any], data: dict[str, Any]
    ) -> None:
        """Keep what was measured ("evaluation", "comparison", "tasks", "cost", ...); one per
        kind and protocol, the latest.
        """
        self._database.add_result(self.get(run_id).id, kind, protocol, data)

    def results(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Newest last."""
        return self._database.results(run_id, kind)

    def add_samples(self, run_id: str, samples: Sequence[dict[str, Any]]) -> None:
        """Keep generated text: each with prompt, text and settings."""
        self._database.add_samples(self.get(run_id).id, samples)

    def samples(self, run_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
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
            f"The report in '{folder}' holds what is no evaluation. The file was changed or cut: "
            "copy it again."
        )
    report = {key: value for key, value in report.items() if key != "evaluations"}
    return Row(run_id, name, created, folder, recipe.to_dict(), report, evaluations)


def _is_evaluation(kept: Any) -> bool:
    return isinstance(kept, Mapping) and isinstance(kept.get("protocol"), Mapping)


def _check_text(*names: str) -> None:
    """Raise InputError for a name that the database cannot hold, TypeError for one that is none."""
    for name in names:
        try:
            str.encode(name)
        except UnicodeEncodeError as error:
            raise InputError(
                f"{quoted(name)} holds what is no UTF-8 text. Give another name."
            ) from error


def _new_id(method: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{uuid.uuid4().hex[:4]}"
