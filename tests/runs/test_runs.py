"""The database of runs: persistence, concurrent processes, and data of earlier versions."""

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
from lrcore.recipes.recipe import Recipe
from lrcore.runs.database import Database
from lrcore.runs.differences import differences
from lrcore.runs.runs import Runs
from lrcore.system.errors import ResourceError


@pytest.fixture(scope="module")
def small(tiny_llama, story_file):
    recipe = lrcore.Recipe(
        model=str(tiny_llama), data=str(story_file), samples=4, seq_len=32, ratio=0.4
    )
    return lrcore.compress(lrcore.load(str(tiny_llama)), recipe)


@pytest.fixture
def stored_runs(tmp_path):
    return Runs(tmp_path / "runs")


def recipe_of(small, **changes):
    return small.recipe.with_(**changes)


def test_all_data_of_a_run_survive_a_restart(stored_runs, small):
    recipe = recipe_of(small)
    run = stored_runs.write("first", recipe, small)
    stored_runs.rename(run.id, " better ")
    stored_runs.tag(run.id, "paper")
    stored_runs.tag(run.id, "old")
    stored_runs.untag(run.id, "old")
    stored_runs.add_evaluation(run.id, {"protocol": {"source": "a"}, "perplexity": 2.0})
    stored_runs.add_evaluation(run.id, {"protocol": {"source": "b"}, "perplexity": 3.0})
    stored_runs.add_evaluation(run.id, {"protocol": {"source": "a"}, "perplexity": 4.0})
    stored_runs.add_result(run.id, "cost", {}, {"parameters": 7})
    stored_runs.add_samples(run.id, [{"prompt": "Once", "text": " upon", "settings": {"seed": 1}}])
    reopened = Runs(stored_runs.folder)
    reloaded = reopened.get(run.id)
    assert (reloaded.name, reloaded.tags, reloaded.recipe) == ("better", ("paper",), recipe)
    assert [evaluation["perplexity"] for evaluation in reloaded.evaluations] == [3.0, 4.0]
    assert reopened.results(run.id, "cost") == [{"parameters": 7}]
    assert reopened.samples(run.id) == [
        {"prompt": "Once", "text": " upon", "settings": {"seed": 1}}
    ]
    assert reloaded.account.to_dict() == json.loads(json.dumps(small.account.to_dict()))
    assert lrcore.load(str(reloaded.checkpoint)).size == small.size
    assert "rank" in reloaded.ranks_csv
    assert reopened.all("paper") == [reloaded]
    assert reopened.all("old") == []


def test_listing_reads_each_run_once_and_includes_all_changes(stored_runs, small, monkeypatch):
    runs = [stored_runs.write(name, recipe_of(small), small) for name in "ab"]
    assert stored_runs.all() == [stored_runs.get(run.id) for run in runs]
    monkeypatch.setattr(Recipe, "from_dict", None)  # runs are not read again
    assert [run.name for run in stored_runs.all()] == [*"ab"]
    monkeypatch.undo()
    stored_runs.rename(runs[0].id, "c")
    stored_runs.tag(runs[1].id, "new")
    stored_runs.add_evaluation(runs[1].id, {"protocol": {"source": "a"}, "perplexity": 2.0})
    assert stored_runs.all() == [stored_runs.get(run.id) for run in runs]
    stored_runs.delete(runs[0].id)
    assert stored_runs.all() == [stored_runs.get(runs[1].id)]


def test_deleting_a_run_removes_its_folder_and_rows(stored_runs, small):
    run = stored_runs.write("a", recipe_of(small), small)
    stored_runs.add_samples(run.id, [{"prompt": "x", "text": "y"}])
    stored_runs.delete(run.id)
    assert stored_runs.ids() == []
    assert not run.folder.exists()
    assert stored_runs.samples(run.id) == []
    with pytest.raises(lrcore.InputError, match="No run"):
        stored_runs.get(run.id)


def test_a_discarded_run_is_restored_with_all_its_rows(stored_runs, small, tmp_path):
    outside = lrcore.save(small, tmp_path / "outside")
    runs = [stored_runs.write("a", recipe_of(small), small), stored_runs.add(outside, "b")]
    for run in runs:
        stored_runs.tag(run.id, "new")
        stored_runs.add_samples(run.id, [{"prompt": "x", "text": "y"}])
        before = stored_runs.get(run.id)
        stored_runs.discard(run.id)
        assert run.id not in stored_runs.ids()
        assert [stored_run.id for stored_run in stored_runs.all()] == [
            r.id for r in runs if r is not run
        ]
        assert stored_runs.restore(run.id) == before
        assert stored_runs.all() == [stored_runs.get(r.id) for r in runs]
        assert stored_runs.samples(run.id)[0]["text"] == "y"
    for run in runs:
        stored_runs.discard(run.id)
    assert not runs[0].folder.exists()
    with pytest.raises(lrcore.InputError, match="permanently"):
        stored_runs.restore(runs[0].id)  # the trash has room for one run
    assert stored_runs.restore(runs[1].id).checkpoint == outside


def test_folders_of_earlier_versions_are_added_and_missing_ones_are_dropped(stored_runs, small):
    old = stored_runs.folder / "20250101-000000-a3-abcd"
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
    before = stored_runs.stamp()
    assert stored_runs.ids() == [old.name]
    run = stored_runs.get(old.name)
    assert (run.name, run.created, run.evaluations, run.recipe.ratio) == (
        "of old",
        5.0,
        evaluations,
        0.3,
    )
    stored_runs.rename(run.id, "renamed")
    assert [listed.name for listed in Runs(stored_runs.folder).all()] == ["renamed"]
    shutil.rmtree(old)
    assert stored_runs.ids() == []
    assert stored_runs.stamp() != before


def test_listing_many_runs_opens_no_files_and_reads_rows_once(stored_runs, monkeypatch):
    for i in range(30):
        folder = stored_runs.folder / f"2025-a3-{i}"
        folder.mkdir()
        (folder / "recipe.json").write_text("{}")
        (folder / "report.json").write_text(json.dumps({"name": str(i)}))
    assert len(stored_runs.ids()) == 30
    stamp = stored_runs.stamp()
    monkeypatch.setattr(Path, "read_text", None)
    monkeypatch.setattr(Database, "folders", None)
    assert stored_runs.stamp() == stamp
    assert len(stored_runs.ids()) == 30
    monkeypatch.undo()
    shutil.rmtree(stored_runs.folder / "2025-a3-7")
    assert "2025-a3-7" not in stored_runs.ids()
    (stored_runs.folder / "2025-a3-new").mkdir()
    # an incomplete copy of a folder: the report is written last
    assert len(stored_runs.ids()) == 29
    for name in ("recipe.json", "report.json"):
        shutil.copy(
            stored_runs.folder / "2025-a3-8" / name, stored_runs.folder / "2025-a3-new" / name
        )
    assert len(stored_runs.ids()) == 30


def test_all_new_folders_are_added_in_one_transaction(stored_runs, monkeypatch):
    """A transaction per folder, each with a write to disk, would take minutes for thousands of
    folders.
    """
    changes, transaction = [], Database._transaction
    monkeypatch.setattr(
        Database, "_transaction", lambda self: changes.append(1) or transaction(self)
    )
    for i in range(30):
        folder = stored_runs.folder / f"2025-a3-{i}"
        folder.mkdir()
        (folder / "recipe.json").write_text("{}" if i != 3 else "{")
        evaluations = [{"protocol": {"of": i}, "perplexity": float(i)}]
        report = {"name": str(i), "created": i, "evaluations": evaluations}
        (folder / "report.json").write_text(json.dumps(report | {"version": 2}))
    assert len(stored_runs.ids()) == 29
    assert len(changes) == 1
    assert stored_runs.results("2025-a3-7", "evaluation") == [
        {"protocol": {"of": 7}, "perplexity": 7.0}
    ]


def test_concurrent_listings_read_the_runs_once(stored_runs, small, monkeypatch):
    stored_runs.write("one", small.recipe, small)
    entered, go_on, built, readings = threading.Event(), threading.Event(), Runs._read_all, []

    def slowly(self):
        entered.set()
        assert go_on.wait(30)
        readings.append(1)
        return built(self)

    monkeypatch.setattr(Runs, "_read_all", slowly)
    results = []
    asking = [threading.Thread(target=lambda: results.append(stored_runs.all())) for _ in range(2)]
    for thread in asking:
        thread.start()
    assert entered.wait(30)
    go_on.set()
    for thread in asking:
        thread.join(30)
    assert [len(runs) for runs in results] == [1, 1]
    assert readings == [1]


def test_the_stamp_changes_with_each_change_of_any_process(stored_runs, small):
    seen = [stored_runs.stamp()]
    run = stored_runs.write("a", recipe_of(small), small)
    seen.append(stored_runs.stamp())
    code = f"import lrcore; lrcore.Runs({str(stored_runs.folder)!r}).rename({run.id!r}, 'theirs')"
    assert fresh.project().run(["-c", code], os.environ, stored_runs.folder).returncode == 0
    seen.append(stored_runs.stamp())
    assert len(set(seen)) == 3
    assert stored_runs.get(run.id).name == "theirs"
    assert stored_runs.stamp() == seen[-1]


def test_concurrent_writers_lose_no_data(stored_runs, small):
    run = stored_runs.write("a", recipe_of(small), small)

    def write(start):
        runs = Runs(stored_runs.folder)
        for i in range(10):
            runs.add_result(run.id, "count", {"i": start + i}, {"i": start + i})

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result["i"] for result in stored_runs.results(run.id, "count")) == sorted(
        s + i for s in (0, 100, 200, 300) for i in range(10)
    )


def test_a_run_saved_during_a_listing_keeps_its_results(stored_runs, small, monkeypatch):
    second, listed = Runs(stored_runs.folder), Database.folders

    def between(database):
        """Add and evaluate a run in a second process as soon as this process reads the database."""
        monkeypatch.setattr(Database, "folders", listed)
        run = second.write("a", recipe_of(small), small)
        second.add_evaluation(run.id, {"protocol": {}, "perplexity": 2.0})
        return listed(database)

    monkeypatch.setattr(Database, "folders", between)
    stored_runs.stamp()
    assert [
        evaluation["perplexity"] for run in stored_runs.all() for evaluation in run.evaluations
    ] == [2.0]


def test_unfinished_writes_are_preserved_and_leftovers_of_killed_processes_are_deleted(
    stored_runs, small, monkeypatch
):
    leftover = stored_runs.folder / ".x.0123abcd.tmp"
    leftover.mkdir()

    write = lrcore.save

    def save(model, folder):
        """Open the same folder during the write, as a second process would."""
        (folder.parent / "first").touch()
        Runs(stored_runs.folder)
        assert (folder.parent / "first").is_file()
        return write(model, folder)

    monkeypatch.setattr("lrcore.checkpoints.checkpoint.save", save)
    run = stored_runs.write("a", recipe_of(small), small)
    assert not leftover.exists()
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "checkpoint",
        "first",
        "recipe.json",
        "report.json",
    ]


def test_an_external_checkpoint_is_not_moved_or_deleted(stored_runs, small, tmp_path):
    folder = lrcore.save(small, tmp_path / "elsewhere")
    run = stored_runs.add(folder, "theirs")
    assert run.checkpoint == folder
    assert [listed.name for listed in Runs(stored_runs.folder).all()] == ["theirs"]
    stored_runs.delete(run.id)
    assert (folder / "model.safetensors").is_file()
    with pytest.raises(lrcore.InputError, match="not a compressed model"):
        stored_runs.add(tmp_path)


def test_differences_lists_the_differing_fields(stored_runs, small):
    runs = [
        stored_runs.write(name, recipe_of(small, ratio=ratio), small)
        for name, ratio in (("a", 0.1), ("b", 0.2), ("c", 0.1))
    ]
    assert differences(runs) == [{"field": "ratio", "a": 0.1, "b": 0.2, "c": 0.1}]
    assert differences([runs[0], runs[2]]) == []
    for wrong in (runs[:1], runs * 3):
        with pytest.raises(lrcore.InputError, match="two to 6 runs"):
            differences(wrong)


def run_json(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_lists_renames_tags_compares_and_deletes_runs(
    stored_runs, small, capsys, monkeypatch
):
    first, second = (
        stored_runs.write(name, recipe_of(small, seed=i), small)
        for i, name in enumerate(("a", "b"))
    )
    base = ["runs", "--folder", stored_runs.folder]
    listed = run_json(capsys, *base)
    assert [row["name"] for row in listed["runs"]] == ["b", "a"]
    assert run_json(capsys, *base, "rename", "a", "first")["name"] == "first"
    assert run_json(capsys, *base, "tag", first.id, "x", "y")["tags"] == ["x", "y"]
    assert run_json(capsys, *base, "tag", first.id, "x", "--remove")["tags"] == ["y"]
    assert [row["id"] for row in run_json(capsys, *base, "--tag", "y")["runs"]] == [first.id]
    assert run_json(capsys, *base, "compare", "first", "b")["differences"] == [
        {"field": "seed", "first": 0, "b": 1}
    ]
    assert run_json(capsys, *base, "show", second.id)["recipe"]["seed"] == 1
    assert main([*map(str, base), "delete", "b", "--json"]) == 2
    assert "not deleted" in capsys.readouterr().err
    assert run_json(capsys, *base, "delete", "b", "--yes") == {"deleted": second.id}
    assert main([*map(str, base), "show", "nobody"]) == 2
    assert "No run matches 'nobody'" in capsys.readouterr().err
    monkeypatch.setenv("LRCORE_RUNS", str(stored_runs.folder))
    assert [row["id"] for row in run_json(capsys, "runs")["runs"]] == [first.id]


def test_a_change_that_exceeds_the_disk_space_is_refused_without_effect(stored_runs, small):
    """File sizes are limited to the current size of the database."""
    run = stored_runs.write("a", recipe_of(small), small)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(ResourceError, match="cannot be written: "):
            stored_runs.add_samples(run.id, [{"prompt": "x", "text": "y" * 10**6}])
        with pytest.raises(ResourceError, match="cannot be written: "):
            stored_runs.write("b", recipe_of(small), small)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stored_runs.samples(run.id) == []
    assert stored_runs.ids() == [run.id]
    assert sorted(path.name for path in stored_runs.folder.glob(".*")) == []
    stored_runs.add_samples(run.id, [{"prompt": "x", "text": "y"}])
    assert len(stored_runs.samples(run.id)) == 1
