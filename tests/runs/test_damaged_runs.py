"""Runs that were edited, truncated or mixed up: an unreadable run does not hide others, and an
invalid database is reported.
"""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

import lrcore
from lrcore.cli import main
from lrcore.runs.database import Database

NEW = "20260202-000000-a3-beef"
FIRST = "20260101-000000-a3-cafe"


@pytest.fixture(scope="module")
def small(tiny_llama, story_file, tmp_path_factory) -> Path:
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16, ratio=0.4)
    made = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    return lrcore.save(made, tmp_path_factory.mktemp("small") / "model")


@pytest.fixture
def folder(small, tmp_path) -> Path:
    """Return a folder with a run."""
    runs = tmp_path / "runs"
    put(small, runs / FIRST)
    assert [run.name for run in lrcore.Runs(runs).all()] == ["own"]
    return runs


def put(small: Path, folder: Path, **report: object) -> None:
    """Write the folder of a run, with these fields in its report."""
    shutil.copytree(small, folder)
    values = json.loads((folder / "report.json").read_text()) | {"name": "own", "created": 1.0}
    (folder / "report.json").write_text(json.dumps(values | report))


DAMAGED = {
    "binary": b"\xff" * 5000,
    "a text": b"hello",
    "cut": None,
    "of another program": b"",
}


@pytest.mark.parametrize("how", DAMAGED)
def test_an_invalid_database_is_reported_and_can_be_rebuilt_from_folders(how, folder, capsys):
    file, content = folder / "runs.sqlite", DAMAGED[how]
    original = file.read_bytes()
    file.write_bytes(original[:5000] if content is None else content)
    if how == "of another program":
        with sqlite3.connect(file) as database:
            database.execute("create table runs (mine text)")
        database.close()
    assert main(["runs", "--folder", str(folder)]) == 2
    output = capsys.readouterr().err
    assert output.startswith(f"error: '{file}' cannot be used as the database of runs")
    assert output.count("\n") == 1
    file.unlink()
    assert [run.name for run in lrcore.Runs(folder).all()] == ["own"]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_special_file_instead_of_the_database_is_reported(kind, folder, capsys):
    file = folder / "runs.sqlite"
    file.unlink()
    (os.mkfifo if kind == "pipe" else os.mkdir)(file)
    assert main(["runs", "--folder", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"error: '{file}' is not a file.")


@pytest.mark.parametrize("column", ["recipe", "report"])
@pytest.mark.parametrize("value", ["{", "[1]", "5", "[" * 100_000, b"\xff"], ids=range(5))
def test_an_unreadable_row_does_not_hide_other_runs(column, value, folder, small):
    runs = lrcore.Runs(folder)
    second = runs.add(small, "other")
    with sqlite3.connect(folder / "runs.sqlite") as database:
        database.execute(f"update runs set {column} = ? where id = ?", (value, FIRST))
    database.close()
    assert [run.name for run in lrcore.Runs(folder).all()] == ["other"]
    with pytest.raises(lrcore.InputError, match="No run"):
        runs.get(FIRST)
    runs.delete(second.id)


@pytest.mark.parametrize("value", ["{", "[]", "5", "null", '{"protocol": []}'])
def test_unreadable_results_and_samples_are_omitted(value, folder):
    with sqlite3.connect(folder / "runs.sqlite") as database:
        row = (FIRST, "evaluation", "p", 1.0, value)
        database.execute("insert into results values (?, ?, ?, ?, ?)", row)
        database.execute("insert into samples values (?, 1.0, 'p', '{', 't')", (FIRST,))
    database.close()
    runs = lrcore.Runs(folder)
    assert [run.evaluations for run in runs.all()] == [[]]
    assert runs.samples(FIRST) == [{"prompt": "p", "text": "t", "settings": {}}]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("created", time) for time in ("today", 1e308, -1.0)),
        *((name, b"\xff") for name in ("name", "folder", "id")),
    ],
    ids=str,
)
def test_a_row_with_unexpected_types_does_not_hide_other_runs(column, value, folder, small):
    lrcore.Runs(folder).add(small, "other")
    with sqlite3.connect(folder / "runs.sqlite") as database:
        database.execute(f"update runs set {column} = ? where id = ?", (value, FIRST))
    database.close()
    assert "other" in {run.name for run in lrcore.Runs(folder).all()}
    assert main(["runs", "--folder", str(folder)]) == 0


REPORTS = (
    *({"name": value} for value in (5, None, [], "\ud800")),
    *({"created": value} for value in ("today", None, [], True, False, 1e308, -1.0, 10**400)),
    *({"account": value} for value in ({}, 5, [])),
    *({"evaluations": value} for value in (5, [5], [{}], [{"protocol": 5}], {"a": 1})),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: ascii(report)[:30])
def test_a_folder_with_an_invalid_report_is_omitted(report, folder, small):
    put(small, folder / NEW, **report)
    assert [run.id for run in lrcore.Runs(folder).all()] == [FIRST]
    assert main(["runs", "--folder", str(folder)]) == 0


def test_a_run_with_an_integer_time_is_listed(folder, small):
    put(small, folder / NEW, created=5)
    made = {run.id: run.created for run in lrcore.Runs(folder).all()}[NEW]
    assert (made, type(made)) == (5.0, float)


@pytest.mark.parametrize("name", ["report.json", "recipe.json"])
@pytest.mark.parametrize("kind", ["deep", "pipe", "folder"])
def test_a_folder_with_an_invalid_file_is_omitted(name, kind, folder, small):
    put(small, folder / NEW)
    file = folder / NEW / name
    file.unlink()
    if kind == "deep":
        file.write_text("[" * 100_000)
    else:
        (os.mkfifo if kind == "pipe" else os.mkdir)(file)
    assert [run.id for run in lrcore.Runs(folder).all()] == [FIRST]


def test_a_folder_with_an_undecodable_name_is_omitted(folder, small):
    put(small, Path(os.fsdecode(os.fsencode(folder) + b"/2026\xff")))
    assert [run.id for run in lrcore.Runs(folder).all()] == [FIRST]


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000], ids=["cut", "list", "deep"])
def test_a_model_with_an_invalid_report_is_not_added(content, folder, small, tmp_path, capsys):
    model = shutil.copytree(small, tmp_path / "model")
    (model / "report.json").write_text(content)
    assert main(["runs", "--folder", str(folder), "add", str(model)]) == 2
    assert [run.id for run in lrcore.Runs(folder).all()] == [FIRST]


def test_a_locked_database_is_reported(folder, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, **more: connect(file, **more | IMPATIENT))
    holder = connect(folder / "runs.sqlite", isolation_level=None)
    holder.execute("begin exclusive")
    with pytest.raises(lrcore.InputError, match="locked by another program"):
        Database(folder / "runs.sqlite").rename(FIRST, "mine")
    holder.close()


IMPATIENT = {"timeout": 0.0}
