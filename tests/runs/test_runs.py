"""The database of runs: what survives, what two processes see, and what earlier versions left."""

import json
import os
import resource
import shutil
import threading
from pathlib import Path

import fresh
import pytest

import lrcore
from lrcore.cli import main
from lrcore.recipe import Recipe
from lrcore.runs.database import Database
from lrcore.runs.differences import differences
from lrcore.runs.runs import PARTIAL, Runs


@pytest.fixture(scope="module")
def small(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4
    )
    return lrcore.compress(lrcore.load(str(tiny_llama)), recipe)


@pytest.fixture
def kept(tmp_path):
    return Runs(tmp_path / "runs")


def recipe_of(small, **changes):
    return small.recipe.with_(**changes)


def test_all_of_a_run_survives_a_restart(kept, small):
    recipe = recipe_of(small)
    run = kept.write("first", recipe, small)
    kept.rename(run.id, " better ")
    kept.tag(run.id, "paper")
    kept.tag(run.id, "old")
    kept.untag(run.id, "old")
    kept.add_evaluation(run.id, {"protocol": {"source": "a"}, "perplexity": 2.0})
    kept.add_evaluation(run.id, {"protocol": {"source": "b"}, "perplexity": 3.0})
    kept.add_evaluation(run.id, {"protocol": {"source": "a"}, "perplexity": 4.0})
    kept.add_result(run.id, "cost", {}, {"parameters": 7})
    kept.add_samples(run.id, [{"prompt": "Once", "text": " upon", "settings": {"seed": 1}}])
    again = Runs(kept.folder)
    got_result = again.get(run.id)
    assert (got_result.name, got_result.tags, got_result.recipe) == ("better", ("paper",), recipe)
    assert [one["perplexity"] for one in got_result.evaluations] == [3.0, 4.0]
    assert again.results(run.id, "cost") == [{"parameters": 7}]
    assert again.samples(run.id) == [{"prompt": "Once", "text": " upon", "settings": {"seed": 1}}]
    assert got_result.account.to_dict() == json.loads(json.dumps(small.account.to_dict()))
    assert lrcore.load(str(got_result.checkpoint)).size == small.size
    assert "rank" in got_result.ranks_csv
    assert again.all("paper") == [got_result]
    assert again.all("old") == []


def test_listing_reads_each_run_once_and_follows_every_change(kept, small, monkeypatch):
    runs = [kept.write(name, recipe_of(small), small) for name in "ab"]
    assert kept.all() == [kept.get(run.id) for run in runs]
    monkeypatch.setattr(Recipe, "from_dict", None)  # a run that was read is not read again
    assert [run.name for run in kept.all()] == [*"ab"]
    monkeypatch.undo()
    kept.rename(runs[0].id, "c")
    kept.tag(runs[1].id, "new")
    kept.add_evaluation(runs[1].id, {"protocol": {"source": "a"}, "perplexity": 2.0})
    assert kept.all() == [kept.get(run.id) for run in runs]
    kept.delete(runs[0].id)
    assert kept.all() == [kept.get(runs[1].id)]


def test_deleting_removes_folder_and_rows(kept, small):
    run = kept.write("a", recipe_of(small), small)
    kept.add_samples(run.id, [{"prompt": "x", "text": "y"}])
    kept.delete(run.id)
    assert kept.ids() == []
    assert not run.folder.exists()
    assert kept.samples(run.id) == []
    with pytest.raises(lrcore.InputError, match="No run"):
        kept.get(run.id)


def test_folders_of_earlier_versions_are_taken_up_and_lost_ones_forgotten(kept, small):
    old = kept.folder / "20250101-000000-a3-abcd"
    old.mkdir()
    evaluations = [{"protocol": {"source": "s"}, "perplexity": 1.5}]
    (old / "report.json").write_text(
        json.dumps(
            {
                "name": "of old",
                "created": 5.0,
                **small.provenance.to_dict(),
                "evaluations": evaluations,
            }
        )
    )
    (old / "recipe.json").write_text(json.dumps({"model": "demo-llama", "ratio": 0.3}))
    before = kept.stamp()
    assert kept.ids() == [old.name]
    run = kept.get(old.name)
    assert (run.name, run.created, run.evaluations, run.recipe.ratio) == (
        "of old",
        5.0,
        evaluations,
        0.3,
    )
    kept.rename(run.id, "renamed")
    assert [one.name for one in Runs(kept.folder).all()] == ["renamed"]
    shutil.rmtree(old)
    assert kept.ids() == []
    assert kept.stamp() != before


def test_a_look_at_many_runs_opens_no_file_of_them_and_reads_no_row_twice(kept, monkeypatch):
    for i in range(30):
        folder = kept.folder / f"2025-a3-{i}"
        folder.mkdir()
        (folder / "recipe.json").write_text("{}")
        (folder / "report.json").write_text(json.dumps({"name": str(i)}))
    assert len(kept.ids()) == 30
    stamp = kept.stamp()
    monkeypatch.setattr(Path, "read_text", None)
    monkeypatch.setattr(Database, "folders", None)
    assert kept.stamp() == stamp
    assert len(kept.ids()) == 30
    monkeypatch.undo()
    shutil.rmtree(kept.folder / "2025-a3-7")
    assert "2025-a3-7" not in kept.ids()
    (kept.folder / "2025-a3-new").mkdir()
    assert len(kept.ids()) == 29  # a folder that is being copied: its report comes last
    for name in ("recipe.json", "report.json"):
        shutil.copy(kept.folder / "2025-a3-8" / name, kept.folder / "2025-a3-new" / name)
    assert len(kept.ids()) == 30


def test_all_new_folders_are_taken_up_by_one_change(kept, monkeypatch):
    """One for each, and its write to disk, takes minutes for thousands."""
    changes, changing = [], Database._changing
    monkeypatch.setattr(Database, "_changing", lambda own: changes.append(1) or changing(own))
    for i in range(30):
        folder = kept.folder / f"2025-a3-{i}"
        folder.mkdir()
        (folder / "recipe.json").write_text("{}" if i != 3 else "{")
        evaluations = [{"protocol": {"of": i}, "perplexity": float(i)}]
        report = {"name": str(i), "created": i, "evaluations": evaluations}
        (folder / "report.json").write_text(json.dumps(report | {"version": 2}))
    assert len(kept.ids()) == 29
    assert len(changes) == 1
    assert kept.results("2025-a3-7", "evaluation") == [{"protocol": {"of": 7}, "perplexity": 7.0}]


def test_two_that_ask_for_all_runs_at_once_read_them_once(kept, small, monkeypatch):
    kept.write("one", small.recipe, small)
    entered, go_on, built, readings = threading.Event(), threading.Event(), Runs._built, []

    def slowly(own):
        entered.set()
        assert go_on.wait(30)
        readings.append(1)
        return built(own)

    monkeypatch.setattr(Runs, "_built", slowly)
    found = []
    asking = [threading.Thread(target=lambda: found.append(kept.all())) for _ in range(2)]
    for one in asking:
        one.start()
    assert entered.wait(30)
    go_on.set()
    for one in asking:
        one.join(30)
    assert [len(runs) for runs in found] == [1, 1]
    assert readings == [1]


def test_the_stamp_changes_with_every_change_of_any_process(kept, small):
    seen = [kept.stamp()]
    run = kept.write("a", recipe_of(small), small)
    seen.append(kept.stamp())
    code = f"import lrcore; lrcore.Runs({str(kept.folder)!r}).rename({run.id!r}, 'theirs')"
    assert fresh.project().run(["-c", code], os.environ, kept.folder).returncode == 0
    seen.append(kept.stamp())
    assert len(set(seen)) == 3
    assert kept.get(run.id).name == "theirs"
    assert kept.stamp() == seen[-1]


def test_many_writers_lose_nothing(kept, small):
    run = kept.write("a", recipe_of(small), small)

    def write(start):
        own = Runs(kept.folder)
        for i in range(10):
            own.add_result(run.id, "count", {"i": start + i}, {"i": start + i})

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["i"] for one in kept.results(run.id, "count")) == sorted(
        s + i for s in (0, 100, 200, 300) for i in range(10)
    )


def test_a_run_kept_while_another_takes_stock_keeps_its_figures(kept, small, monkeypatch):
    other, listed = Runs(kept.folder), Database.folders

    def between(database):
        """Another process keeps and measures a run as soon as this one reads the database."""
        monkeypatch.setattr(Database, "folders", listed)
        run = other.write("a", recipe_of(small), small)
        other.add_evaluation(run.id, {"protocol": {}, "perplexity": 2.0})
        return listed(database)

    monkeypatch.setattr(Database, "folders", between)
    kept.stamp()
    assert [one["perplexity"] for run in kept.all() for one in run.evaluations] == [2.0]


def test_what_is_being_written_is_left_alone_and_what_killed_processes_left_goes(
    kept, small, monkeypatch
):
    left = [kept.folder / name for name in (f"{PARTIAL}999999999-x", ".x.0123abcd.tmp")]
    for folder in left:
        folder.mkdir()

    write = lrcore.save

    def save(model, folder):
        """Somebody opens the same folder in the middle, in this process too."""
        (folder.parent / "first").touch()
        Runs(kept.folder)
        assert (folder.parent / "first").is_file()
        return write(model, folder)

    monkeypatch.setattr("lrcore.checkpoints.checkpoint.save", save)
    run = kept.write("a", recipe_of(small), small)
    assert not any(folder.exists() for folder in left)
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "checkpoint",
        "first",
        "recipe.json",
        "report.json",
    ]


def test_a_checkpoint_from_elsewhere_stays_where_it_is(kept, small, tmp_path):
    folder = lrcore.save(small, tmp_path / "elsewhere")
    run = kept.add(folder, "theirs")
    assert run.checkpoint == folder
    assert [one.name for one in Runs(kept.folder).all()] == ["theirs"]
    kept.delete(run.id)
    assert (folder / "model.safetensors").is_file()
    with pytest.raises(lrcore.InputError, match="no compressed model"):
        kept.add(tmp_path)


def test_only_the_differences(kept, small):
    runs = [
        kept.write(name, recipe_of(small, ratio=ratio), small)
        for name, ratio in (("a", 0.1), ("b", 0.2), ("c", 0.1))
    ]
    assert differences(runs) == [{"field": "ratio", "a": 0.1, "b": 0.2, "c": 0.1}]
    assert differences([runs[0], runs[2]]) == []
    for wrong in (runs[:1], runs * 3):
        with pytest.raises(lrcore.InputError, match="two to 6"):
            differences(wrong)


def run_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command(kept, small, capsys, monkeypatch):
    one, two = (
        kept.write(name, recipe_of(small, seed=i), small) for i, name in enumerate(("a", "b"))
    )
    base = ["runs", "--folder", kept.folder]
    listed = run_json(capsys, *base)
    assert [row["name"] for row in listed["runs"]] == ["b", "a"]
    assert run_json(capsys, *base, "rename", "a", "first")["name"] == "first"
    assert run_json(capsys, *base, "tag", one.id, "x", "y")["tags"] == ["x", "y"]
    assert run_json(capsys, *base, "tag", one.id, "x", "--remove")["tags"] == ["y"]
    assert [row["id"] for row in run_json(capsys, *base, "--tag", "y")["runs"]] == [one.id]
    assert run_json(capsys, *base, "compare", "first", "b")["differences"] == [
        {"field": "seed", "first": 0, "b": 1}
    ]
    assert run_json(capsys, *base, "show", two.id)["recipe"]["seed"] == 1
    assert main([*map(str, base), "delete", "b", "--json"]) == 2
    assert "not deleted" in capsys.readouterr().err
    assert run_json(capsys, *base, "delete", "b", "--yes") == {"deleted": two.id}
    assert main([*map(str, base), "show", "nobody"]) == 2
    assert "No run is called 'nobody'" in capsys.readouterr().err
    monkeypatch.setenv("LRCORE_RUNS", str(kept.folder))
    assert [row["id"] for row in run_json(capsys, "runs")["runs"]] == [one.id]


def test_a_change_for_which_there_is_no_room_is_refused_and_changes_nothing(kept, small):
    """No file may grow beyond what the database takes."""
    run = kept.write("a", recipe_of(small), small)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(lrcore.Shortage, match="cannot be written: "):
            kept.add_samples(run.id, [{"prompt": "x", "text": "y" * 10**6}])
        with pytest.raises(lrcore.Shortage, match="cannot be written: "):
            kept.write("b", recipe_of(small), small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert kept.samples(run.id) == []
    assert kept.ids() == [run.id]
    assert sorted(path.name for path in kept.folder.glob(".*")) == []
    kept.add_samples(run.id, [{"prompt": "x", "text": "y"}])
    assert len(kept.samples(run.id)) == 1
