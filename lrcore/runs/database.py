"""The database of runs (SQLite): names, tags, recipes, results and samples, for several
processes at once.
"""

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..as_json import json_text
from ..errors import InputError
from ..files import writing

SCHEMA = """
create table if not exists runs (
    id text primary key, name text not null, created real not null, folder text not null,
    recipe text not null, report text not null);
create table if not exists tags (
    run text not null references runs on delete cascade, tag text not null,
    primary key (run, tag));
create table if not exists results (
    run text not null references runs on delete cascade, kind text not null,
    protocol text not null, created real not null,
    data text not null, primary key (run, kind, protocol));
create table if not exists samples (
    run text not null references runs on delete cascade, created real not null,
    prompt text not null, settings text not null,
    text text not null);
create table if not exists changes (count integer not null);
insert into changes select 0 where not exists (select * from changes);
"""
LATEST = 1e11  # seconds since the epoch
AT_ONCE = 500  # rows of one question; SQLite takes 999 values


@dataclass(frozen=True)
class Row:
    """What the table of runs holds of one.

    folder: relative to that of the runs, or absolute; recipe, report: plain values. evaluations,
    oldest first: only of a row that is inserted.
    """

    id: str
    name: str
    created: float
    folder: str
    recipe: dict[str, Any]
    report: dict[str, Any]
    evaluations: Sequence[dict[str, Any]] = ()


class Database:
    """The rows of one file.

    A run that is not there has no tags, results and samples, and none can be given to it
    (IntegrityError). What changes something raises Shortage where there is no room for it.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with self._reading() as database:
            database.executescript(SCHEMA)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        # A connection of its own for every use: threads and processes share nothing but the file.
        # 30 s: the wait for another writer.
        if self.file.exists() and not self.file.is_file():
            raise InputError(f"'{self.file}' is no file. Move it away, or choose another folder.")
        with (
            _whole(self.file),
            writing(self.file),
            closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as database,
        ):
            database.row_factory = sqlite3.Row
            database.execute("pragma journal_mode = wal")
            database.execute("pragma foreign_keys = on")
            yield database

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is whole or not at all, and changes `stamp`."""
        with self._reading() as database:
            database.execute("begin immediate")
            try:
                yield database
                database.execute("update changes set count = count + 1")
                database.execute("commit")
            except BaseException:
                if database.in_transaction:  # a full disk has ended it already
                    database.execute("rollback")
                raise

    def _rows(self, question: str, *values: Any) -> list[sqlite3.Row]:
        with self._reading() as database:
            return database.execute(question, values).fetchall()

    def stamp(self) -> str:
        """Changes with every change by whichever process."""
        return str(self._rows("select count from changes")[0]["count"])

    # --- runs ---

    def folders(self) -> dict[str, str]:
        """{id: folder} of every run, oldest first."""
        return {
            row["id"]: row["folder"]
            for row in self._rows("select id, name, created, folder from runs order by created, id")
            if _is_sound(row)
        }

    def heads(self) -> list[tuple[str, str, float, str]]:
        """(id, name, created, folder) of every run, oldest first."""
        question = "select id, name, created, folder from runs order by created, id"
        return [
            (row["id"], row["name"], row["created"], row["folder"])
            for row in self._rows(question)
            if _is_sound(row)
        ]

    def get(self, run_id: str) -> Row | None:
        return next(self.get_all([run_id]), None)

    def get_all(self, run_ids: Sequence[str]) -> Iterator[Row]:
        """The rows of those that are there, without those that cannot be read."""
        for at in range(0, len(run_ids), AT_ONCE):
            some = run_ids[at : at + AT_ONCE]
            places = ", ".join("?" * len(some))
            for row in self._rows(f"select * from runs where id in ({places})", *some):
                recipe, report = _read(row["recipe"]), _read(row["report"])
                if recipe is not None and report is not None and _is_sound(row):
                    own = (row["id"], row["name"], row["created"], row["folder"])
                    yield Row(*own, recipe, report)

    def insert(self, rows: Sequence[Row]) -> None:
        """Runs with their evaluations; one that is there already stays as it is."""
        with self._changing() as database:
            for row in rows:
                _insert(database, row)

    def rename(self, run_id: str, name: str) -> None:
        with self._changing() as database:
            database.execute("update runs set name = ? where id = ?", (name, run_id))

    def delete(self, run_ids: Iterable[str]) -> None:
        with self._changing() as database:
            database.executemany("delete from runs where id = ?", [(run_id,) for run_id in run_ids])

    # --- what belongs to a run ---

    def tags(self, run_id: str) -> tuple[str, ...]:
        return tuple(
            row["tag"]
            for row in self._rows("select tag from tags where run = ? order by tag", run_id)
        )

    def all_tags(self) -> dict[str, tuple[str, ...]]:
        """Of the runs that have any, by id."""
        tags: dict[str, list[str]] = {}
        for row in self._rows("select run, tag from tags order by tag"):
            tags.setdefault(row["run"], []).append(row["tag"])
        return {run_id: tuple(own) for run_id, own in tags.items()}

    def tag(self, run_id: str, tag: str) -> None:
        with self._changing() as database:
            database.execute("insert or ignore into tags values (?, ?)", (run_id, tag))

    def untag(self, run_id: str, tag: str) -> None:
        with self._changing() as database:
            database.execute("delete from tags where run = ? and tag = ?", (run_id, tag))

    def add_result(
        self, run_id: str, kind: str, protocol: dict[str, Any], data: dict[str, Any]
    ) -> None:
        """One per kind and protocol, the latest."""
        with self._changing() as database:
            _keep_result(database, run_id, kind, protocol, data, time.time())

    def results(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Newest last."""
        question = "select data from results where run = ? and kind = ? order by created, rowid"
        data = (_read_result(row["data"]) for row in self._rows(question, run_id, kind))
        return [one for one in data if one is not None]

    def all_results(self, kind: str) -> dict[str, list[dict[str, Any]]]:
        """Newest last, of the runs that have any, by id."""
        question = "select run, data from results where kind = ? order by created, rowid"
        results: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows(question, kind):
            if (data := _read_result(row["data"])) is not None:
                results.setdefault(row["run"], []).append(data)
        return results

    def add_samples(self, run_id: str, samples: Sequence[dict[str, Any]]) -> None:
        rows = [
            (
                run_id,
                time.time(),
                one["prompt"],
                json_text(one.get("settings", {}), nulls=True),
                one["text"],
            )
            for one in samples
        ]
        with self._changing() as database:
            database.executemany("insert into samples values (?, ?, ?, ?, ?)", rows)

    def samples(self, run_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        rows = self._rows("select * from samples where run = ? order by created, rowid", run_id)
        return [
            {"prompt": row["prompt"], "text": row["text"], "settings": _read(row["settings"]) or {}}
            for row in rows
        ]


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    """InputError in the place of what a file leads to that is damaged, or no database of runs."""
    try:
        yield
    except sqlite3.IntegrityError:  # of a run that is gone
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise InputError(
            f"'{file}' cannot be used as the database of runs ({error}). Another program may hold "
            "it, or it is damaged: move it away, and the runs are taken up anew from their folders."
        ) from error


def _read(text: Any) -> dict[str, Any] | None:
    """The JSON object in a field; None where there is none, as after somebody has edited it."""
    try:
        values = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _read_result(text: Any) -> dict[str, Any] | None:
    """The same for what was measured, by whichever protocol."""
    values = _read(text)
    return values if values and isinstance(values.get("protocol", {}), dict) else None


def is_date(seconds: Any) -> bool:
    """Whether this is a number of seconds since the epoch, whole or not, in [0, 1e11): what is
    later is a mistake, which no calendar holds.
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return number and 0 <= seconds < LATEST


def _is_sound(row: sqlite3.Row) -> bool:
    """Whether the row of a run has texts and a time where they have to be."""
    texts, created = (row["id"], row["name"], row["folder"]), row["created"]
    return all(isinstance(one, str) for one in texts) and is_date(created)


def _insert(database: sqlite3.Connection, row: Row) -> None:
    values = (row.id, row.name, row.created, row.folder, _json(row.recipe), _json(row.report))
    question = "insert or ignore into runs values (?, ?, ?, ?, ?, ?)"
    if database.execute(question, values).rowcount:
        for i, one in enumerate(row.evaluations):
            created = row.created + i * 1e-3
            _keep_result(database, row.id, "evaluation", one["protocol"], one, created)


def _keep_result(
    database: sqlite3.Connection, run_id: str, kind: str, protocol: dict, data: dict, created: float
) -> None:
    protocol_key = json_text(protocol, sort_keys=True, default=float, nulls=True)
    database.execute(
        "delete from results where run = ? and kind = ? and protocol = ?",
        (run_id, kind, protocol_key),
    )
    database.execute(
        "insert into results values (?, ?, ?, ?, ?)",
        (run_id, kind, protocol_key, created, _json(data)),
    )


def _json(values: dict[str, Any]) -> str:
    return json_text(values, default=float, nulls=True)
