"""The queue: order, cancel, what survives a restart."""

import json
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import lrcore
from lrcore import locks
from workbench import job_markup, text
from workbench.job import Job
from workbench.job_queue import Jobs
from workbench.job_record import ENDED, JobRecord
from workbench.jobs import KINDS
from workbench.priority import JOBS


@dataclass(frozen=True)
class Steps(Job):
    """Five steps; the work itself is the fixture's."""

    kind: ClassVar[str] = "steps"
    n: int = 0

    @property
    def title(self) -> str:
        return f"job {self.n}"

    def run(self, store, reporter):
        pytest.fail("the queue was given other work")


@dataclass(frozen=True)
class Once(Steps):
    kind: ClassVar[str] = "once"
    once: ClassVar[bool] = True


@dataclass(frozen=True)
class Unkept(Steps):
    kind: ClassVar[str] = "unkept"
    kept: ClassVar[bool] = False


@dataclass(frozen=True)
class Yielding(Steps):
    kind: ClassVar[str] = "yielding"
    yields: ClassVar[bool] = True

    def serves(self, other):
        return other.n == self.n


@dataclass(frozen=True)
class Wrong(Steps):
    kind: ClassVar[str] = "wrong"


@dataclass(frozen=True)
class Broken(Steps):
    kind: ClassVar[str] = "broken"


TEST_KINDS = {kind.kind: kind for kind in (Steps, Once, Unkept, Yielding, Wrong, Broken)}


def ended(jobs, job, seconds=10):
    end = time.monotonic() + seconds
    while jobs.get(job.id).state not in ENDED:
        assert time.monotonic() < end, job
        time.sleep(0.01)
    return jobs.get(job.id)


@pytest.fixture
def bench(tmp_path):
    """A queue whose work waits at every step until `gate` is set."""
    gate, order = threading.Event(), []

    def work(record):
        if record.kind == "wrong":
            raise lrcore.InputError("no such thing: write another")
        if record.kind == "broken":
            raise RuntimeError("first line\nsecond line")
        order.append(record.job.n)
        for i in range(5):
            record.progress("step", i, 5)
            gate.wait(5)
        return ["run-1"]

    return Jobs(tmp_path, TEST_KINDS, work), gate, order


def test_jobs_run_in_order_and_say_how_many_come_first(bench):
    jobs, gate, order = bench
    queued = [jobs.submit(Steps(n)) for n in range(3)]
    assert [jobs.place(job) for job in queued] == [0, 1, 2]
    gate.set()
    assert [ended(jobs, job).state for job in queued] == ["done"] * 3
    assert order == [0, 1, 2]
    assert jobs.get(queued[0].id).result == ["run-1"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads share a priority")
def test_what_redraws_the_page_goes_before_a_job(tmp_path):
    own, seen = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), []

    def work(record):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return []

    jobs = Jobs(tmp_path, TEST_KINDS, work)
    ended(jobs, jobs.submit(Steps(0)))
    assert seen == [max(own, JOBS)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_clients_take_turns_however_many_jobs_one_has_queued(tmp_path):
    client, gate, order = ["first"], threading.Event(), []

    def work(record):
        order.append(record.job.n)
        gate.wait(10)
        return []

    jobs = Jobs(tmp_path, TEST_KINDS, work, lambda: client[0])
    queued = [jobs.submit(Steps(n)) for n in range(4)]
    begun(order)
    client[0] = "second"
    queued += [jobs.submit(Steps(n)) for n in (10, 11)]
    client[0] = "third"
    queued.append(jobs.submit(Steps(20)))
    assert [record.job.n for record in jobs.waiting()] == [0, 10, 20, 1, 11, 2, 3]
    gate.set()
    assert {ended(jobs, record).state for record in queued} == {"done"}
    assert order == [0, 10, 20, 1, 11, 2, 3]


def test_the_queue_takes_no_more_than_its_limits(bench, monkeypatch):
    jobs, gate, _ = bench
    monkeypatch.setattr("workbench.job_queue.MOST", 3)
    queued = [jobs.submit(Steps(n)) for n in range(3)]
    with pytest.raises(lrcore.InputError, match="3 jobs wait already"):
        jobs.submit(Steps(3))
    jobs.cancel(queued[2].id)
    queued.append(jobs.submit(Steps(4)))
    monkeypatch.setattr("workbench.job_queue.MOST", 100)
    monkeypatch.setattr("workbench.job_queue.OWN", 1)
    jobs._client = lambda: "one"
    queued.append(jobs.submit(Steps(5)))
    with pytest.raises(lrcore.InputError, match="1 of your jobs"):
        jobs.submit(Steps(6))
    jobs._client = lambda: "two"
    queued.append(jobs.submit(Steps(7)))
    gate.set()
    assert [ended(jobs, job).state for job in queued[3:]] == ["done"] * 3


def test_a_kind_of_job_without_its_work_is_refused():
    class Idle(Job):
        kind = title = "idle"

    with pytest.raises(TypeError, match="run"):
        Idle()


def test_cancel_of_a_waiting_job_and_of_a_running_one(bench):
    jobs, gate, order = bench
    first = jobs.submit(Steps(0))
    while not order:  # it has begun
        time.sleep(0.01)
    second, third = (jobs.submit(Steps(n)) for n in (1, 2))
    jobs.cancel(second.id)
    assert second.state == "cancelled"
    jobs.cancel(first.id)
    gate.set()
    assert ended(jobs, first).state == "cancelled"
    assert first.done < 4
    assert ended(jobs, third).state == "done"
    assert order == [0, 2]


def begun(order, count=1):
    end = time.monotonic() + 10
    while len(order) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_job_that_yields_lets_others_go_first_and_runs_after_them(bench):
    jobs, gate, order = bench
    first = jobs.submit(Yielding(0))
    begun(order)
    other, asked = jobs.submit(Yielding(1)), jobs.submit(Steps(2))
    assert jobs.place(asked) < jobs.place(other)
    gate.set()
    assert [ended(jobs, job).state for job in (asked, first, other)] == ["done"] * 3
    assert order == [0, 2, 0, 1]
    assert any("another job goes first" in line for line in first.log)


def test_a_job_waits_for_the_one_that_computes_what_it_needs(bench):
    jobs, gate, order = bench
    first = jobs.submit(Yielding(0))
    begun(order)
    asked = jobs.submit(Steps(0))
    gate.set()
    assert [ended(jobs, job).state for job in (first, asked)] == ["done"] * 2
    assert order == [0, 0]


def test_a_job_that_was_put_off_can_be_cancelled(bench):
    jobs, gate, order = bench
    first = jobs.submit(Yielding(0))
    begun(order)
    asked = jobs.submit(Steps(1))
    jobs.cancel(first.id)
    gate.set()
    assert ended(jobs, first).state == "cancelled"
    assert ended(jobs, asked).state == "done"
    assert order == [0, 1]


def test_cancel_stops_within_a_layer(tmp_path):
    """A stage that reports no progress, but runs a network."""
    network = torch.nn.Sequential(torch.nn.Identity())
    began, passes = threading.Event(), []

    def work(record):
        network(torch.zeros(1))
        began.set()
        while True:
            network(torch.zeros(1))
            passes.append(record.cancelled.is_set())

    jobs = Jobs(tmp_path, TEST_KINDS, work)
    job = jobs.submit(Steps(0))
    assert began.wait(10)
    network(torch.zeros(1))  # another thread is not asked
    jobs.cancel(job.id)
    assert ended(jobs, job).state == "cancelled"
    assert sum(passes) <= 1
    network(torch.zeros(1))
    assert text.CANCELLING in job_markup.steps(job)


def test_cancel_stops_where_no_network_runs(tmp_path):
    """Within a library, say, that takes every exception for a failure of its own."""
    began = threading.Event()

    def work(record):
        began.set()
        while True:
            with suppress(Exception):
                torch.linalg.eigh(torch.eye(8))

    jobs = Jobs(tmp_path, TEST_KINDS, work)
    job = jobs.submit(Steps(0))
    assert began.wait(10)
    jobs.cancel(job.id)
    assert ended(jobs, job).state == "cancelled"


def test_failures_become_one_line(bench):
    jobs, *_ = bench
    assert ended(jobs, jobs.submit(Wrong())).error == "no such thing: write another"
    error = ended(jobs, jobs.submit(Broken())).error
    assert error.startswith("RuntimeError: first line")
    assert "second" not in error


def test_a_failure_that_is_no_exception_leaves_the_worker_for_the_next_job(tmp_path):
    """Such as the panic of a library in Rust."""

    def work(record):
        if record.kind == "broken":
            raise BaseException("panic")
        return ["run-1"]

    jobs = Jobs(tmp_path, TEST_KINDS, work)
    assert ended(jobs, jobs.submit(Broken())).error.startswith("BaseException: panic")
    assert ended(jobs, jobs.submit(Steps(0))).result == ["run-1"]


def test_an_equal_job_that_is_wanted_once_joins_the_first(bench):
    jobs, gate, _ = bench
    one = jobs.submit(Once(1))
    assert jobs.submit(Once(1)) is one
    assert jobs.submit(Once(2)) is not one
    steps = jobs.submit(Steps(1))
    assert jobs.submit(Steps(1)) is not steps
    gate.set()


def test_a_restart_lists_what_ended_and_offers_what_was_interrupted(bench, tmp_path):
    jobs, gate, _ = bench
    gate.set()
    done = ended(jobs, jobs.submit(Steps(0)))
    gate.clear()
    running = jobs.submit(Steps(1))
    unkept = jobs.submit(Unkept(2))
    jobs.read(done.id)
    again = Jobs(tmp_path, TEST_KINDS, lambda record: [])
    assert again.get(done.id).state == "done"
    assert again.get(done.id).was_read
    assert again.get(running.id).state == "interrupted"
    assert again.get(unkept.id) is None
    fresh = again.again(running.id)
    assert fresh.job == Steps(1)
    assert ended(again, fresh).state == "done"
    assert again.get(running.id) is None
    gate.set()


def test_a_job_that_is_cancelled_and_forgotten_while_it_is_queued_stays_forgotten(
    bench, tmp_path, monkeypatch
):
    jobs, gate, _ = bench
    gate.set()
    write = jobs._write

    def late(record, state=""):
        monkeypatch.setattr(jobs, "_write", write)
        jobs.cancel(record.id)
        jobs.forget(record.id)
        write(record, state)

    monkeypatch.setattr(jobs, "_write", late)
    jobs.submit(Steps(0))
    assert Jobs(tmp_path, TEST_KINDS, lambda record: []).all() == []


def test_pressing_start_again_twice_queues_one_job(bench):
    jobs, gate, _ = bench
    gate.set()
    done = ended(jobs, jobs.submit(Steps(0)))
    jobs.again(done.id)
    with pytest.raises(lrcore.InputError, match="already"):
        jobs.again(done.id)
    assert len(jobs.all()) == 1


def test_half_written_records_of_a_killed_server_go_and_those_of_another_one_stay(tmp_path):
    left, written = tmp_path / ".a.json.01234567.tmp", tmp_path / ".b.json.01234567.tmp"
    for path in (left, written):
        path.touch()
    lock = locks.take(written)
    Jobs(tmp_path, TEST_KINDS, lambda record: [])
    assert [path.name for path in tmp_path.iterdir()] == [written.name]
    lock.release()


ODD = (
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


@pytest.mark.parametrize(("field", "value"), ODD, ids=str)
def test_a_record_with_an_odd_field_is_left_out(field, value, tmp_path):
    record = JobRecord(KINDS["compress"](lrcore.Recipe("demo-llama"), "name"), id="good")
    (tmp_path / "good.json").write_text(json.dumps(record.to_dict()))
    odd = record.to_dict() | {"id": "odd"} | {field: value}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    jobs = Jobs(tmp_path, KINDS, lambda record: [])
    assert [one.id for one in jobs.all()] == ["good"]
    assert "good" in job_markup.job_list(jobs)


@pytest.mark.parametrize("field", [("log", [5]), ("curve", ["x"]), ("stages", [{"name": 5}])])
def test_a_record_with_an_odd_entry_is_left_out(field, tmp_path):
    record = JobRecord(KINDS["compress"](lrcore.Recipe("demo-llama"), "name"), id="odd")
    (tmp_path / "odd.json").write_text(json.dumps(record.to_dict() | dict([field])))
    assert Jobs(tmp_path, KINDS, lambda record: []).all() == []


def test_the_server_of_a_record_may_be_anything(tmp_path):
    record = JobRecord(KINDS["compress"](lrcore.Recipe("demo-llama"), "name"), id="one")
    for server in (5, None, [], {}):
        (tmp_path / "one.json").write_text(json.dumps(record.to_dict() | {"server": server}))
        assert [one.id for one in Jobs(tmp_path, KINDS, lambda record: []).all()] == ["one"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_among_the_records_is_left_out(make, tmp_path):
    make(tmp_path / "odd.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert Jobs(tmp_path, KINDS, lambda record: []).all() == []


def test_a_broken_record_is_left_out(tmp_path):
    (tmp_path / "x.json").write_text("{not json")
    (tmp_path / "y.json").write_text(json.dumps({"unknown": 1}))
    assert Jobs(tmp_path, {}, lambda record: []).all() == []


def test_time_left_comes_from_measured_units(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("workbench.job_record.time.monotonic", lambda: now[0])
    job = JobRecord(Steps(), state="running")
    job.progress("step", 0, 5)
    assert job.eta() is None
    for i in (1, 2):
        now[0] += 3
        job.progress("step", i, 5)
    assert job.eta() == pytest.approx(9)
    job.progress("next stage", 0, 2)
    assert job.eta() is None


def test_every_stage_has_its_time_beside_what_was_estimated(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("workbench.job_record.time.monotonic", lambda: now[0])
    job = JobRecord(Steps(), state="running")

    def run(stage, done, total, seconds):
        job.progress(stage, done, total)
        now[0] += seconds

    run("load", 0, 1, 0.4)
    run("load", 1, 1, 0)
    run("compress", 2, 6, 4)  # resumed: two of six were done
    assert "4 s so far" in job_markup.steps(job)
    run("compress", 3, 6, 12)
    run("compress", 5, 6, 2)
    words = "load 0.4 s · compress 18 s (estimated 16 s)"
    job.progress("evaluate both", 0, 4)
    now[0] += 7
    job.progress("evaluate both", 2, 4)
    row = job_markup.job_row(job, 0)
    assert words in row
    assert "7 s so far · about 7 s left" in row
    job.progress("evaluate both", 0, 4)  # of another run
    assert f"{words} · evaluate both 7.0 s (estimated 14 s)" in job_markup.job_row(job, 0)
    job.end("done")
    again = JobRecord.from_dict(json.loads(json.dumps(job.to_dict())), TEST_KINDS)
    again.state = "done"
    assert "<li>compress 18 s (estimated 16 s)</li>" in job_markup.job_row(again, 0)


RECIPE = lrcore.Recipe(ratio=0.3, overrides={"0.qk": 4})
SETTINGS = {"data": "stories", "samples": 2, "seq_len": 32, "sampling": "first", "seed": 0}
BEFORE = {  # records as earlier versions wrote them: kind and spec
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


@pytest.mark.parametrize("kind", BEFORE)
def test_a_record_of_an_earlier_version_is_read_and_can_be_started_again(kind, tmp_path):
    record = {
        "id": "abc",
        "kind": kind,
        "title": "its title",
        "spec": BEFORE[kind],
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
    jobs = Jobs(tmp_path, KINDS, lambda record: ["made"])
    (old,) = jobs.all()
    assert (old.kind, old.title, old.state) == (kind, "its title", "interrupted")
    again = ended(jobs, jobs.again("abc"))
    assert (again.job, again.title, again.result) == (old.job, "its title", ["made"])
    fields = {"run_id" if name == "run" else name: one for name, one in BEFORE[kind].items()}
    if "stock" in fields:
        fields["target"] = "transformers-stock" if fields.pop("stock") else "transformers"
    stored = json.loads((tmp_path / f"{again.id}.json").read_text())["job"]
    for name, one in fields.items():
        assert stored[name] == one or one.items() <= stored[name].items(), name
    assert JobRecord.from_dict(json.loads(json.dumps(again.to_dict())), KINDS).job == old.job


def test_every_kind_has_a_title_and_a_row():
    details = KINDS["details"](("run-1",), lrcore.EvaluationSettings("stories", 2, 16))
    assert KINDS.keys() == {*BEFORE, "analyse", "survey", "details", "table"}
    table = KINDS["table"]("a3-table10", lrcore.Sweep.read("a3-table10"))
    of_others = {"details": details, "table": table}
    for kind in ("analyse", "survey", *of_others):
        job = of_others.get(kind) or KINDS[kind](RECIPE)
        assert job.title
        assert KINDS[kind].from_dict(json.loads(json.dumps(job.to_dict()))) == job


@pytest.fixture
def full_disk(monkeypatch):
    """Records cannot be written while `full_disk` holds something."""
    write, full = lrcore.write_text, ["the disk"]

    def refused(path, text):
        if full:
            raise lrcore.Shortage("The disk is full.")
        write(path, text)

    monkeypatch.setattr(lrcore, "write_text", refused)
    return full


def test_a_job_whose_record_has_no_room_is_refused_and_the_queue_goes_on(bench, full_disk):
    jobs, gate, _ = bench
    full_disk.clear()
    first = jobs.submit(Steps(0))
    full_disk.append("the disk")
    with pytest.raises(lrcore.Shortage):
        jobs.submit(Steps(1))
    assert jobs.all() == [first]
    gate.set()
    assert ended(jobs, first).state == "done"
    assert "not on disk" in first.log[-1]
    full_disk.clear()
    assert ended(jobs, jobs.submit(Steps(2))).state == "done"


def test_a_job_that_cannot_be_started_again_for_lack_of_room_stays(bench, full_disk, tmp_path):
    jobs, gate, order = bench
    full_disk.clear()
    gate.set()
    done = ended(jobs, jobs.submit(Steps(0)))
    gate.clear()
    jobs.submit(Steps(1))
    begun(order, 2)
    full_disk.append("the disk")
    with pytest.raises(lrcore.Shortage):
        jobs.again(done.id)
    assert jobs.get(done.id) is done
    assert (tmp_path / f"{done.id}.json").is_file()
    gate.set()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory does not suffice"),
        (RuntimeError("can't allocate memory: you tried to allocate 4000000 bytes."), "4.0 MB"),
        (RuntimeError("can't start new thread"), "memory does not suffice"),
        (ImportError("x.so: failed to map segment from shared object"), "memory does not suffice"),
        (OSError(28, "No space left on device"), "the disk is full"),
    ],
)
def test_a_lack_of_memory_is_a_sentence_and_the_next_job_runs(tmp_path, error, said):
    left = [error]

    def work(record):
        if left:
            raise left.pop()
        return []

    jobs = Jobs(tmp_path, TEST_KINDS, work)
    failed = ended(jobs, jobs.submit(Steps(0)))
    assert failed.state == "failed"
    assert said in failed.error
    assert "server's log" not in failed.error
    assert ended(jobs, jobs.submit(Steps(1))).state == "done"
