"""The database of runs (SQLite): names, tags, recipes, results and samples.

Several processes can use it at the same time.
"""

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..system.as_json import json_text
from ..system.errors import InputError
from ..system.files import writing

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
HIDDEN = ".deleted:"  # before the folder of a hidden run
MAX_TIME = 1e11  # seconds since the epoch
MAX_PARAMETERS = 500  # per query; SQLite accepts 999


@dataclass(frozen=True)
class Row:
    """A row of the table of runs.

    folder: relative to the folder of the runs, or absolute. recipe, report: plain values.
    evaluations, oldest first: only for a row to be inserted.
    """

    id: str
    name: str
    created: float
    folder: str
    recipe: dict[str, Any]
    report: dict[str, Any]
    evaluations: Sequence[dict[str, Any]] = ()


class Database:
    """The rows of a database file.

    Tags, results and samples belong to an existing run; adding them for a missing run raises
    IntegrityError. All changes raise ResourceError if the disk is full.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        with self._connection() as database:
            database.executescript(SCHEMA)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        # A separate connection per use, because threads and processes share only the file.
        # timeout, in seconds: the wait for a concurrent writer.
        if self.file.exists() and not self.file.is_file():
            raise InputError(f"'{self.file}' is not a file. Move it away or choose another folder.")
        with (
            _database_errors(self.file),
            writing(self.file),
            closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as database,
        ):
            database.row_factory = sqlite3.Row
            database.execute("pragma journal_mode = wal")
            database.execute("pragma foreign_keys = on")
            yield database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that is applied completely or not at all, and that changes `stamp`."""
        with self._connection() as database:
            database.execute("begin immediate")
            try:
                yield database
                database.execute("update changes set count = count + 1")
                database.execute("commit")
            except BaseException:
                if database.in_transaction:  # a full disk has already ended it
                    database.execute("rollback")
                raise

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._connection() as database:
            return database.execute(query, values).fetchall()

    def stamp(self) -> str:
        """Return a value that changes with every change by any process."""
        return str(self._rows("select count from changes")[0]["count"])

    # --- runs ---

    def folders(self) -> dict[str, str]:
        """Return {id: folder} of all runs, oldest first."""
        return {
            row["id"]: row["folder"]
            for row in self._rows("select id, name, created, folder from runs order by created, id")
            if _is_valid(row)
        }

    def list_runs(self) -> list[tuple[str, str, float, str]]:
        """Return (id, name, created, folder) of all runs, oldest first."""
        query = "select id, name, created, folder from runs order by created, id"
        return [
            (row["id"], row["name"], row["created"], row["folder"])
            for row in self._rows(query)
            if _is_valid(row)
        ]

    def get(self, run_id: str) -> Row | None:
        """Return the row of a run; None if it is missing or cannot be read."""
        return next(self.get_all([run_id]), None)

    def get_all(self, run_ids: Sequence[str]) -> Iterator[Row]:
        """Return the rows of the runs that exist and can be read."""
        for start in range(0, len(run_ids), MAX_PARAMETERS):
            batch = run_ids[start : start + MAX_PARAMETERS]
            placeholders = ", ".join("?" * len(batch))
            for row in self._rows(f"select * from runs where id in ({placeholders})", *batch):
                recipe, report = _json_object(row["recipe"]), _json_object(row["report"])
                if recipe is not None and report is not None and _is_valid(row):
                    columns = (row["id"], row["name"], row["created"], row["folder"])
                    yield Row(*columns, recipe, report)

    def insert(self, rows: Sequence[Row]) -> None:
        """Insert runs with their evaluations; existing runs are unchanged."""
        with self._transaction() as database:
            for row in rows:
                _insert(database, row)

    def rename(self, run_id: str, name: str) -> None:
        with self._transaction() as database:
            database.execute("update runs set name = ? where id = ?", (name, run_id))

    def hide(self, run_id: str) -> None:
        """Leave a run out of all lists until `unhide`; its tags, results and samples stay."""
        with self._transaction() as database:
            query = "update runs set folder = ? || folder where id = ?"
            database.execute(query, (HIDDEN, run_id))

    def unhide(self, run_id: str) -> bool:
        """Undo `hide`. Returns whether the run was hidden."""
        if run_id not in self.hidden():
            return False
        with self._transaction() as database:
            query = "update runs set folder = substr(folder, ?) where id = ?"
            database.execute(query, (len(HIDDEN) + 1, run_id))
        return True

    def hidden(self) -> list[str]:
        """Return the ids of hidden runs."""
        query = "select id from runs where substr(folder, 1, ?) = ?"
        return [row["id"] for row in self._rows(query, len(HIDDEN), HIDDEN)]

    def delete(self, run_ids: Iterable[str]) -> None:
        with self._transaction() as database:
            database.executemany("delete from runs where id = ?", [(run_id,) for run_id in run_ids])

    # --- tags, results and samples of a run ---

    def tags(self, run_id: str) -> tuple[str, ...]:
        return tuple(
            row["tag"]
            for row in self._rows("select tag from tags where run = ? order by tag", run_id)
        )

    def all_tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags of all runs with tags, by id."""
        tags: dict[str, list[str]] = {}
        for row in self._rows("select run, tag from tags order by tag"):
            tags.setdefault(row["run"], []).append(row["tag"])
        return {run_id: tuple(run_tags) for run_id, run_tags in tags.items()}

    def tag(self, run_id: str, tag: str) -> None:
        with self._transaction() as database:
            database.execute("insert or ignore into tags values (?, ?)", (run_id, tag))

    def untag(self, run_id: str, tag: str) -> None:
        with self._transaction() as database:
            database.execute("delete from tags where run = ? and tag = ?", (run_id, tag))

    def add_result(
        self, run_id: str, kind: str, protocol: dict[str, Any], data: dict[str, Any]
    ) -> None:
        """Store a result in place of the previous result of the same kind and protocol."""
        with self._transaction() as database:
            _replace_result(database, run_id, kind, protocol, data, time.time())

    def results(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Return the results of a kind, newest last."""
        query = "select data from results where run = ? and kind = ? order by created, rowid"
        data = (_result_of(row["data"]) for row in self._rows(query, run_id, kind))
        return [result for result in data if result is not None]

    def all_results(self, kind: str) -> dict[str, list[dict[str, Any]]]:
        """Return the results of a kind of all runs with such results, newest last, by id."""
        query = "select run, data from results where kind = ? order by created, rowid"
        results: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows(query, kind):
            if (data := _result_of(row["data"])) is not None:
                results.setdefault(row["run"], []).append(data)
        return results

    def add_samples(self, run_id: str, samples: Sequence[dict[str, Any]]) -> None:
        rows = [
            (
                run_id,
                time.time(),
                sample["prompt"],
                json_text(sample.get("settings", {}), nulls=True),
                sample["text"],
            )
            for sample in samples
        ]
        with self._transaction() as database:
            database.executemany("insert into samples values (?, ?, ?, ?, ?)", rows)

    def samples(self, run_id: str) -> list[dict[str, Any]]:
        """Return the samples of a run, oldest first."""
        rows = self._rows("select * from samples where run = ? order by created, rowid", run_id)
        return [
            {
                "prompt": row["prompt"],
                "text": row["text"],
                "settings": _json_object(row["settings"]) or {},
            }
            for row in rows
        ]


@contextmanager
def _database_errors(file: Path) -> Iterator[None]:
    """Raise InputError if the file is damaged or is not a database of runs."""
    try:
        yield
    except sqlite3.IntegrityError:  # the run was deleted
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise InputError(
            f"'{file}' cannot be used as the database of runs ({error}). It is locked by another "
            "program or damaged. If it is damaged, move it away: the runs are restored from their "
            "folders."
        ) from error


def _json_object(text: Any) -> dict[str, Any] | None:
    """Return the JSON object in a field; None if the field has a different content, for example
    after an edit.
    """
    try:
        values = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _result_of(text: Any) -> dict[str, Any] | None:
    """Return the measured result in a field, whatever its protocol; None as in `_json_object`."""
    values = _json_object(text)
    return values if values and isinstance(values.get("protocol", {}), dict) else None


def is_date(seconds: Any) -> bool:
    """Return whether the value is a number of seconds since the epoch in [0, 1e11).

    Later times are errors that no calendar can represent.
    """
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return number and 0 <= seconds < MAX_TIME


def _is_valid(row: sqlite3.Row) -> bool:
    """Return whether a run is not hidden, and its columns contain texts and a time, as required."""
    texts, created = (row["id"], row["name"], row["folder"]), row["created"]
    is_readable = all(isinstance(text, str) for text in texts) and is_date(created)
    return is_readable and not row["folder"].startswith(HIDDEN)


def _insert(database: sqlite3.Connection, row: Row) -> None:
    values = (row.id, row.name, row.created, row.folder, _json(row.recipe), _json(row.report))
    query = "insert or ignore into runs values (?, ?, ?, ?, ?, ?)"
    if database.execute(query, values).rowcount:
        for i, evaluation in enumerate(row.evaluations):
            protocol, created = evaluation["protocol"], row.created + i * 1e-3
            _replace_result(database, row.id, "evaluation", protocol, evaluation, created)


def _replace_result(
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
