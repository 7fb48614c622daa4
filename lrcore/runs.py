"""Runs: checkpoints as folders, and a small database (SQLite) of their names, tags, recipes, results and samples.

Several processes may use one folder at once. The folders are the truth about which runs there are: one that the database does not
know is taken up, with what its report holds; one that is gone is forgotten.
"""

import json
import os
import re
import shutil
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import MARK, save
from .errors import InputError
from .models.load import LoadedModel
from .recipe import Recipe

PARTIAL = ".partial-"
MOST = 6
SCHEMA = """
create table if not exists runs (
    id text primary key, name text not null, created real not null, folder text not null, recipe text not null, report text not null);
create table if not exists tags (run text not null references runs on delete cascade, tag text not null, primary key (run, tag));
create table if not exists results (
    run text not null references runs on delete cascade, kind text not null, protocol text not null, created real not null,
    data text not null, primary key (run, kind, protocol));
create table if not exists samples (
    run text not null references runs on delete cascade, created real not null, prompt text not null, settings text not null,
    text text not null);
create table if not exists changes (count integer not null);
insert into changes select 0 where not exists (select * from changes);
"""


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
    """A finished compression. folder holds the checkpoint, as a folder in it or itself; report is what `compress` reported."""

    id: str
    name: str
    created: float
    folder: Path
    recipe: Recipe
    report: dict[str, Any]
    tags: tuple[str, ...]
    evaluations: list[dict[str, Any]]  # results of kind "evaluation", newest last

    @property
    def checkpoint(self) -> Path:
        inner = self.folder / "checkpoint"
        return inner if inner.is_dir() else self.folder

    @property
    def ranks_csv(self) -> str:
        return (self.checkpoint / "ranks.csv").read_text(encoding="utf-8")


class Runs:
    """All runs of one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{PARTIAL}*"):
            if not _alive(left.name.removeprefix(PARTIAL).partition("-")[0]):  # a writing or deleting that was interrupted
                shutil.rmtree(left, ignore_errors=True)
        with self._database() as database:
            database.executescript(SCHEMA)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        # A connection of its own for every use: threads and processes share nothing but the file. 30 s: the wait for another writer.
        with closing(sqlite3.connect(self.folder / "runs.sqlite", timeout=30, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            database.execute("pragma journal_mode = wal")
            database.execute("pragma foreign_keys = on")
            yield database

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is whole or not at all, and changes `stamp`."""
        with self._database() as database:
            database.execute("begin immediate")
            try:
                yield database
                database.execute("update changes set count = count + 1")
                database.execute("commit")
            except BaseException:
                database.execute("rollback")
                raise

    # --- what there is ---

    def ids(self) -> list[str]:
        """Oldest first."""
        self._take_stock()
        with self._database() as database:
            return [row["id"] for row in database.execute("select id from runs order by created, id")]

    def all(self, tag: str | None = None) -> list[Run]:
        """Oldest first; only those with a tag, where one is given. Runs with a recipe that this version cannot read are left out."""
        runs = []
        for run_id in self.ids():
            try:
                run = self.get(run_id)
            except (ValueError, OSError, KeyError, TypeError):
                continue
            if tag is None or tag in run.tags:
                runs.append(run)
        return runs

    def get(self, run_id: str) -> Run:
        """Raises InputError for an id that is not there."""
        with self._database() as database:
            row = database.execute("select * from runs where id = ?", (run_id,)).fetchone()
            if row is None:
                raise InputError(f"No run '{run_id}'. It may have been deleted; choose another one under Runs & export.")
            tags = [one["tag"] for one in database.execute("select tag from tags where run = ? order by tag", (run_id,))]
        evaluations, report = self.results(run_id, "evaluation"), json.loads(row["report"])
        report |= {"name": row["name"], "evaluations": evaluations}
        folder = self.folder / row["folder"]
        return Run(
            run_id, row["name"], row["created"], folder, Recipe.from_dict(json.loads(row["recipe"])), report, tuple(tags), evaluations
        )

    def find(self, words: str) -> Run:
        """A run by its id, the beginning of its id, or its name. Raises InputError where none or several fit."""
        fitting = [run for run in self.all() if run.id == words or run.name == words or run.id.startswith(words)]
        exact = [run for run in fitting if run.id == words] or fitting
        if len(exact) != 1:
            state = "No run is" if not exact else f"{len(exact)} runs are"
            raise InputError(f"{state} called '{words}' in '{self.folder}'. `runs` lists them with their ids.")
        return exact[0]

    def stamp(self) -> str:
        """Changes whenever a run is added, removed or changed, by whichever process."""
        self._take_stock()
        with self._database() as database:
            return str(database.execute("select count from changes").fetchone()["count"])

    def _take_stock(self) -> None:
        """Take up run folders that the database lacks, such as those of earlier versions, and forget runs whose folder is gone."""
        there = {path.parent.name for path in self.folder.glob("*/report.json") if not path.parent.name.startswith(".")}
        with self._database() as database:
            known = {row["id"]: row["folder"] for row in database.execute("select id, folder from runs")}
        for run_id in sorted(there - known.keys()):
            folder = self.folder / run_id
            try:
                report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
                recipe = Recipe.read(folder / "recipe.json")
                self._insert(run_id, report["name"], report.get("created", folder.stat().st_mtime), run_id, recipe, report)
            except (ValueError, OSError, KeyError, TypeError):  # a folder somebody else edited is left out, not a dead page
                continue
        gone = [run_id for run_id, folder in known.items() if folder == run_id and run_id not in there]
        if gone:
            with self._change() as database:
                database.executemany("delete from runs where id = ?", [(run_id,) for run_id in gone])

    # --- changes ---

    def write(self, name: str, recipe: Recipe, model: LoadedModel) -> Run:
        """Keep a compressed model as a run: its folder is there whole or not at all."""
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe.method}-{uuid.uuid4().hex[:4]}"
        partial = self._aside(run_id)
        partial.mkdir(parents=True)
        save(model, partial / "checkpoint")
        report = {"name": name, "created": time.time(), **(model.report or {})}
        (partial / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
        (partial / "report.json").write_text(json.dumps(report, indent=2, default=float), encoding="utf-8")
        os.replace(partial, self.folder / run_id)
        self._take_stock()
        return self.get(run_id)

    def add(self, folder: str | Path, name: str = "") -> Run:
        """Take up a checkpoint that lies elsewhere, such as one that the command line wrote; its files stay where they are."""
        folder = Path(folder).expanduser().absolute()
        if not (folder / MARK).is_file() or not (folder / "report.json").is_file() or not (folder / "recipe.json").is_file():
            raise InputError(
                f"'{folder}' is no compressed model ({MARK}, report.json and recipe.json). Give a folder that `compress` wrote."
            )
        recipe = Recipe.read(folder / "recipe.json")
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe.method}-{uuid.uuid4().hex[:4]}"
        self._insert(run_id, name or folder.name, time.time(), str(folder), recipe, report)
        return self.get(run_id)

    def _insert(self, run_id: str, name: str, created: float, folder: str, recipe: Recipe, report: dict[str, Any]) -> None:
        report = dict(report)
        evaluations = report.pop("evaluations", [])
        row = (run_id, name, created, folder, recipe.to_json(), json.dumps(report, default=float))
        with self._change() as database:
            if database.execute("insert or ignore into runs values (?, ?, ?, ?, ?, ?)", row).rowcount:
                for i, one in enumerate(evaluations):
                    _keep_result(database, run_id, "evaluation", one["protocol"], one, created + i * 1e-3)

    def rename(self, run_id: str, name: str) -> None:
        if not name.strip():
            raise InputError("A run needs a name: type one and press Rename again.")
        self._update(run_id, "update runs set name = ? where id = ?", (name.strip()[:80], run_id))

    def tag(self, run_id: str, tag: str) -> None:
        if not re.fullmatch(r"[\w.+-]{1,40}", tag):
            raise InputError(f"'{tag}' is no tag: use letters, digits, '.', '+', '_' and '-', at most 40.")
        self._update(run_id, "insert or ignore into tags values (?, ?)", (run_id, tag))

    def untag(self, run_id: str, tag: str) -> None:
        self._update(run_id, "delete from tags where run = ? and tag = ?", (run_id, tag))

    def _update(self, run_id: str, statement: str, values: tuple) -> None:
        self.get(run_id)
        with self._change() as database:
            database.execute(statement, values)

    def delete(self, run_id: str) -> None:
        """Forget a run and remove its folder; the folder of one that was only taken up (`add`) stays."""
        folder = self.get(run_id).folder
        if folder.parent == self.folder and folder.is_dir():
            aside = self._aside(run_id)
            os.replace(folder, aside)  # gone at once: what is half removed is no run
            shutil.rmtree(aside, ignore_errors=True)
        with self._change() as database:
            database.execute("delete from runs where id = ?", (run_id,))

    def _aside(self, run_id: str) -> Path:
        """A name that no reader takes for a run, and that says which process is at work there."""
        return self.folder / f"{PARTIAL}{os.getpid()}-{run_id}"

    # --- results and samples ---

    def add_evaluation(self, run_id: str, evaluation: dict[str, Any]) -> None:
        """Keep an evaluation; an earlier one under the same protocol is replaced."""
        self.add_result(run_id, "evaluation", evaluation["protocol"], evaluation)

    def add_result(self, run_id: str, kind: str, protocol: dict[str, Any], data: dict[str, Any]) -> None:
        """Keep what was measured ("evaluation", "comparison", "tasks", "cost", ...); one per kind and protocol, the latest."""
        self.get(run_id)
        with self._change() as database:
            _keep_result(database, run_id, kind, protocol, data, time.time())

    def results(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Newest last."""
        with self._database() as database:
            found = database.execute("select data from results where run = ? and kind = ? order by created, rowid", (run_id, kind))
            return [json.loads(row["data"]) for row in found]

    def add_samples(self, run_id: str, samples: Sequence[dict[str, Any]]) -> None:
        """Keep generated text: each with prompt, text and settings."""
        self.get(run_id)
        rows = [(run_id, time.time(), one["prompt"], json.dumps(one.get("settings", {})), one["text"]) for one in samples]
        with self._change() as database:
            database.executemany("insert into samples values (?, ?, ?, ?, ?)", rows)

    def samples(self, run_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        with self._database() as database:
            found = database.execute("select * from samples where run = ? order by created, rowid", (run_id,)).fetchall()
        return [{"prompt": row["prompt"], "text": row["text"], "settings": json.loads(row["settings"])} for row in found]


def _keep_result(database: sqlite3.Connection, run_id: str, kind: str, protocol: dict, data: dict, created: float) -> None:
    protocol_key = json.dumps(protocol, sort_keys=True, default=float)
    database.execute("delete from results where run = ? and kind = ? and protocol = ?", (run_id, kind, protocol_key))
    row = (run_id, kind, protocol_key, created, json.dumps(data, default=float))
    database.execute("insert into results values (?, ?, ?, ?, ?)", row)


def _alive(process: str) -> bool:
    """Whether a process other than this one has that id; False for what is no id."""
    if not process.isdigit() or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Only what differs between up to six runs: fields of the recipe, of the account, and perplexities. One row per field: "field", then
    one column per run, under its name where names differ, else its id. Raises InputError for fewer than two or more than six."""
    if not 2 <= len(runs) <= MOST:
        raise InputError(f"{len(runs)} runs were chosen; two to {MOST} can be compared.")
    names = [run.name for run in runs] if len({run.name for run in runs}) == len(runs) else [run.id for run in runs]
    values = [_flat(run) for run in runs]
    rows = []
    for name in dict.fromkeys(field for one in values for field in one):
        cells = [one.get(name) for one in values]
        if any(cell != cells[0] for cell in cells):
            rows.append({"field": name, **dict(zip(names, cells, strict=True))})
    return rows


def _flat(run: Run) -> dict[str, Any]:
    recipe = {
        name: value if not isinstance(value, dict) else json.dumps(value, sort_keys=True) for name, value in run.recipe.to_dict().items()
    }
    measured = {}
    for one in run.evaluations:
        protocol = one["protocol"]
        of = f"{protocol.get('source')}, {protocol.get('name', 'windows')} {protocol.get('windows')} x {protocol.get('seq_len')}"
        measured[f"perplexity: {of}"] = one["perplexity"]
    summary = run.report.get("summary", {})
    return recipe | {f"result: {name}": value for name, value in summary.items() if name not in recipe} | measured
