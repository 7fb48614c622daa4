"""The queue: order, cancel, what survives a restart."""

import json
import threading
import time

import pytest

import lrcore
from workbench.jobs import ENDED, Job, Jobs


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

    def steps(job):
        order.append(job.spec.get("n"))
        for i in range(5):
            job.progress("step", i, 5)
            gate.wait(5)
        return ["run-1"]

    def wrong(job):
        raise lrcore.InputError("no such thing: write another")

    def broken(job):
        raise RuntimeError("first line\nsecond line")

    return Jobs(tmp_path, {"steps": steps, "wrong": wrong, "broken": broken}), gate, order


def test_jobs_run_in_order_and_say_how_many_come_first(bench):
    jobs, gate, order = bench
    queued = [jobs.submit("steps", f"job {n}", {"n": n}) for n in range(3)]
    assert [jobs.place(job) for job in queued] == [0, 1, 2]
    gate.set()
    assert [ended(jobs, job).state for job in queued] == ["done"] * 3
    assert order == [0, 1, 2]
    assert jobs.get(queued[0].id).result == ["run-1"]


def test_cancel_of_a_waiting_job_and_of_a_running_one(bench):
    jobs, gate, order = bench
    first = jobs.submit("steps", "job", {"n": 0})
    while not order:  # it has begun
        time.sleep(0.01)
    second, third = (jobs.submit("steps", "job", {"n": n}) for n in (1, 2))
    jobs.cancel(second.id)
    assert second.state == "cancelled"
    jobs.cancel(first.id)
    gate.set()
    assert ended(jobs, first).state == "cancelled"
    assert first.done < 4
    assert ended(jobs, third).state == "done"
    assert order == [0, 2]


def test_failures_become_one_line(bench):
    jobs, *_ = bench
    assert ended(jobs, jobs.submit("wrong", "job", {})).error == "no such thing: write another"
    error = ended(jobs, jobs.submit("broken", "job", {})).error
    assert error.startswith("RuntimeError: first line")
    assert "second" not in error


def test_once_joins_the_same_job(bench):
    jobs, gate, _ = bench
    one = jobs.submit("steps", "job", {"n": 1}, once=True)
    assert jobs.submit("steps", "job", {"n": 1}, once=True) is one
    assert jobs.submit("steps", "job", {"n": 2}, once=True) is not one
    assert jobs.submit("steps", "job", {"n": 1}) is not one
    gate.set()


def test_a_restart_lists_what_ended_and_offers_what_was_interrupted(bench, tmp_path):
    jobs, gate, _ = bench
    gate.set()
    done = ended(jobs, jobs.submit("steps", "job", {"n": 0}))
    gate.clear()
    running = jobs.submit("steps", "job", {"n": 1})
    unkept = jobs.submit("steps", "analysis", {"n": 2}, kept=False)
    again = Jobs(tmp_path, {"steps": lambda job: []})
    assert again.get(done.id).state == "done"
    assert again.get(running.id).state == "interrupted"
    assert again.get(unkept.id) is None
    fresh = again.again(running.id)
    assert fresh.spec == {"n": 1}
    assert ended(again, fresh).state == "done"
    assert again.get(running.id) is None
    gate.set()


def test_a_broken_record_is_left_out(tmp_path):
    (tmp_path / "x.json").write_text("{not json")
    (tmp_path / "y.json").write_text(json.dumps({"unknown": 1}))
    assert Jobs(tmp_path, {}).all() == []


def test_time_left_comes_from_measured_units(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("workbench.jobs.time.monotonic", lambda: now[0])
    job = Job("steps", "job", {}, state="running")
    job.progress("step", 0, 5)
    assert job.eta() is None
    for i in (1, 2):
        now[0] += 3
        job.progress("step", i, 5)
    assert job.eta() == pytest.approx(9)
    job.progress("next stage", 0, 2)
    assert job.eta() is None
