"""Records of jobs on disk after restarts, upgrades and manual edits."""

import json
import os

import pytest
from kinds_of_job import TEST_KINDS, Steps, Unstored, wait_for_job

import lrcore
from lrcore.system import locks
from workbench.jobs import KINDS
from workbench.state.job import FORMER_KINDS
from workbench.state.job_queue import JobQueue
from workbench.state.job_record import JobRecord
from workbench.views import job_markup


def test_a_restart_lists_finished_jobs_and_offers_interrupted_ones(bench, tmp_path):
    jobs, gate, _ = bench
    gate.set()
    done = wait_for_job(jobs, jobs.submit(Steps(0)))
    gate.clear()
    running = jobs.submit(Steps(1))
    unstored = jobs.submit(Unstored(2))
    jobs.mark_read(done.id)
    restarted = JobQueue(tmp_path, TEST_KINDS, lambda record: [])
    assert restarted.get(done.id).state == "done"
    assert restarted.get(done.id).was_read
    assert restarted.get(running.id).state == "interrupted"
    assert restarted.get(unstored.id) is None
    fresh = restarted.restart(running.id)
    assert fresh.job == Steps(1)
    assert wait_for_job(restarted, fresh).state == "done"
    assert restarted.get(running.id) is None
    gate.set()


def test_a_job_concerns_the_same_browser_after_a_restart(bench, tmp_path):
    """The status bar of another browser does not show its result."""
    jobs, gate, _ = bench
    jobs._client = lambda: "one"
    gate.set()
    done = wait_for_job(jobs, jobs.submit(Steps(0)))
    restarted = JobQueue(tmp_path, TEST_KINDS, lambda record: []).get(done.id)
    assert restarted.concerns("one")
    assert not restarted.concerns("two")


def test_a_job_canceled_and_removed_while_it_is_queued_stays_removed(bench, tmp_path, monkeypatch):
    jobs, gate, _ = bench
    gate.set()
    write = jobs._write

    def late(record, state=""):
        monkeypatch.setattr(jobs, "_write", write)
        jobs.cancel(record.id)
        jobs.remove(record.id)
        write(record, state)

    monkeypatch.setattr(jobs, "_write", late)
    jobs.submit(Steps(0))
    assert JobQueue(tmp_path, TEST_KINDS, lambda record: []).all() == []


def test_incomplete_records_of_a_killed_server_are_removed_and_locked_ones_are_kept(tmp_path):
    abandoned, written = tmp_path / ".a.json.01234567.tmp", tmp_path / ".b.json.01234567.tmp"
    for path in (abandoned, written):
        path.touch()
    lock = locks.try_lock(written)
    JobQueue(tmp_path, TEST_KINDS, lambda record: [])
    assert [path.name for path in tmp_path.iterdir()] == [written.name]
    lock.release()


INVALID_FIELDS = (
    *(("id", value) for value in ("other", 5, "../other")),
    *(("title", value) for value in (5, None)),
    *(("state", value) for value in ("flying", 5)),
    *(("done", value) for value in ("x", None, 1.5)),
    *(("result", value) for value in (5, "x", None)),
    *(("created", value) for value in ("x", None, True, 1e308, float("nan"))),
    *(("ended", value) for value in ("x", False, -1.0)),
    *(("stages", value) for value in (5, "x")),
    *(("job", value) for value in (5, "x")),
)


@pytest.mark.parametrize(("field", "value"), INVALID_FIELDS, ids=str)
def test_a_record_with_an_invalid_field_is_skipped(field, value, tmp_path):
    record = JobRecord(KINDS["compress"](lrcore.Recipe("demo-llama"), "name"), id="good")
    (tmp_path / "good.json").write_text(json.dumps(record.to_dict()))
    odd = record.to_dict() | {"id": "odd"} | {field: value}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    jobs = JobQueue(tmp_path, KINDS, lambda record: [])
    assert [listed.id for listed in jobs.all()] == ["good"]
    assert "good" in job_markup.job_list(jobs)


@pytest.mark.parametrize("field", [("log", [5]), ("curve", ["x"]), ("stages", [{"name": 5}])])
def test_a_record_with_an_invalid_entry_of_a_list_is_skipped(field, tmp_path):
    record = JobRecord(KINDS["compress"](lrcore.Recipe("demo-llama"), "name"), id="odd")
    (tmp_path / "odd.json").write_text(json.dumps(record.to_dict() | dict([field])))
    assert JobQueue(tmp_path, KINDS, lambda record: []).all() == []


def test_an_invalid_server_of_a_record_is_ignored(tmp_path):
    record = JobRecord(KINDS["compress"](lrcore.Recipe("demo-llama"), "name"), id="one")
    for server in (5, None, [], {}):
        (tmp_path / "one.json").write_text(json.dumps(record.to_dict() | {"server": server}))
        assert [listed.id for listed in JobQueue(tmp_path, KINDS, lambda record: []).all()] == [
            "one"
        ]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_special_files_among_the_records_are_skipped(make, tmp_path):
    make(tmp_path / "odd.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert JobQueue(tmp_path, KINDS, lambda record: []).all() == []


def test_a_corrupt_record_is_skipped(tmp_path):
    (tmp_path / "x.json").write_text("{not json")
    (tmp_path / "y.json").write_text(json.dumps({"unknown": 1}))
    assert JobQueue(tmp_path, {}, lambda record: []).all() == []


RECIPE = lrcore.Recipe(ratio=0.3, rank_overrides={"0.qk": 4})
SETTINGS = {"data": "stories", "samples": 2, "seq_len": 32, "sampling": "first", "seed": 0}
FORMER_SPECS = {  # specs of records of earlier versions by kind
    "compress": {"recipe": RECIPE.to_dict(), "name": "x", "evaluation": SETTINGS},
    "shorten": {
        "recipe": RECIPE.to_dict(),
        "name": "",
        "evaluation": None,
        "layers": 2,
        "by": "loss",
    },
    "slice": {
        "recipe": RECIPE.to_dict(),
        "name": "",
        "evaluation": SETTINGS,
        "rotations": "one",
    },
    "share": {"recipe": RECIPE.to_dict(), "name": "", "evaluation": SETTINGS, "group": 2},
    "sweep": {
        "recipe": RECIPE.to_dict(),
        "methods": ["a3"],
        "policies": [],
        "ratios": [0.1, 0.2],
        "calibration_sets": [],
        "evaluation": {"data": "stories", "samples": None, "seq_len": 64, "protocol": "strided"},
        "cross": False,
    },
    "measure": {"runs": ["a", "b"], "evaluation": SETTINGS},
    "speed": {"runs": ["a"]},
    "quantise": {"run": "a", "bits": 4},
    "heal": {"run": "a", "healing": {"steps": 9, "lr": 0.001, "beta": 1.0, "rotary_channel": 0}},
    "export": {"run": "a", "stock": True},
    "push": {"run": "a", "stock": False, "repo": "me/small", "private": True},
}


@pytest.mark.parametrize("kind", FORMER_SPECS)
def test_a_record_of_an_earlier_version_is_read_and_can_be_restarted(kind, tmp_path):
    record = {
        "id": "abc",
        "kind": kind,
        "title": "its title",
        "spec": FORMER_SPECS[kind],
        "state": "running",
        "stage": "compress",
        "done": 1,
        "total": 3,
        "error": "",
        "result": [],
        "created": 1.0,
        "started": 2.0,
        "ended": None,
        "log": ["a line"],
    }
    (tmp_path / "abc.json").write_text(json.dumps(record))
    jobs = JobQueue(tmp_path, KINDS, lambda record: ["made"])
    (old,) = jobs.all()
    current = FORMER_KINDS.get(kind, kind)
    assert (old.kind, old.title, old.state) == (current, "its title", "interrupted")
    restarted = wait_for_job(jobs, jobs.restart("abc"))
    assert (restarted.job, restarted.title, restarted.result) == (old.job, "its title", ["made"])
    fields = {
        "run_id" if name == "run" else name: value for name, value in FORMER_SPECS[kind].items()
    }
    if "stock" in fields:
        fields["target"] = "transformers-stock" if fields.pop("stock") else "transformers"
    stored = json.loads((tmp_path / f"{restarted.id}.json").read_text())["job"]
    for name, value in fields.items():
        assert stored[name] == value or value.items() <= stored[name].items(), name
    assert JobRecord.from_dict(json.loads(json.dumps(restarted.to_dict())), KINDS).job == old.job


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("compress", {}),
        ("prune_layers", {"layers": 1, "by": "loss"}),
        ("slice", {"rotations": "block"}),
        ("share", {"group": 2}),
    ],
)
def test_a_job_shows_the_name_of_its_run_before_the_description(kind, fields):
    without = JobRecord(KINDS[kind](RECIPE, **fields)).title
    assert "30%" in without or "layer" in without
    assert JobRecord(KINDS[kind](RECIPE, name="tiny", **fields)).title == f"tiny: {without}"


def test_every_kind_has_a_title_and_a_row():
    details = KINDS["details"](("run-1",), lrcore.EvaluationSettings("stories", 2, 16))
    former = {FORMER_KINDS.get(kind, kind) for kind in FORMER_SPECS}
    assert KINDS.keys() == {*former, "analyze", "survey", "details", "table", "shrink", "smallest"}
    table = KINDS["table"]("a3-table10", lrcore.Sweep.read("a3-table10"))
    special_jobs = {"details": details, "table": table}
    for kind in ("analyze", "survey", *special_jobs):
        job = special_jobs.get(kind) or KINDS[kind](RECIPE)
        assert job.title
        assert KINDS[kind].from_dict(json.loads(json.dumps(job.to_dict()))) == job
