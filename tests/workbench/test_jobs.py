"""The job queue: order, cancellation, remaining time and full disks."""

import json
import os
import sys
import threading
import time
from contextlib import suppress

import pytest
import torch
from kinds_of_job import TEST_KINDS, Broken, Once, Steps, Wrong, Yielding, wait_for_job
from page_server import PATIENCE

import lrcore
from lrcore.system.errors import ResourceError
from lrcore.system.files import write_text
from workbench import words
from workbench.base.process import JOB_NICENESS, lower_priority
from workbench.state.job import Job
from workbench.state.job_queue import JobQueue
from workbench.state.job_record import JobRecord
from workbench.views import job_markup


def test_jobs_run_in_order_and_have_a_position(bench):
    jobs, gate, order = bench
    queued = [jobs.submit(Steps(n)) for n in range(3)]
    assert [jobs.position(job) for job in queued] == [0, 1, 2]
    gate.set()
    assert [wait_for_job(jobs, job).state for job in queued] == ["done"] * 3
    assert order == [0, 1, 2]
    assert jobs.get(queued[0].id).result == ["run-1"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads share a priority")
def test_a_job_has_a_lower_priority_than_the_page(tmp_path):
    priority, seen = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), []

    def work(record):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return []

    jobs = JobQueue(tmp_path, TEST_KINDS, work)
    wait_for_job(jobs, jobs.submit(Steps(0)))
    assert seen == [max(priority, JOB_NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == priority


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads share a priority")
def test_a_job_of_a_page_of_low_priority_keeps_that_priority():
    seen = []

    def job():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), JOB_NICENESS + 7)
        lower_priority(JOB_NICENESS)
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=job)
    thread.start()
    thread.join(PATIENCE)
    assert seen == [JOB_NICENESS + 7]


def test_clients_take_turns_regardless_of_their_number_of_jobs(tmp_path):
    client, gate, order = ["first"], threading.Event(), []

    def work(record):
        order.append(record.job.n)
        gate.wait(PATIENCE)
        return []

    jobs = JobQueue(tmp_path, TEST_KINDS, work, lambda: client[0])
    queued = [jobs.submit(Steps(n)) for n in range(4)]
    wait_for_start(order)
    client[0] = "second"
    queued += [jobs.submit(Steps(n)) for n in (10, 11)]
    client[0] = "third"
    queued.append(jobs.submit(Steps(20)))
    assert [record.job.n for record in jobs.waiting()] == [0, 10, 20, 1, 11, 2, 3]
    gate.set()
    assert {wait_for_job(jobs, record).state for record in queued} == {"done"}
    assert order == [0, 10, 20, 1, 11, 2, 3]


def test_the_number_of_waiting_jobs_is_limited(bench, monkeypatch):
    jobs, gate, _ = bench
    monkeypatch.setattr("workbench.state.job_queue.MAX_WAITING", 3)
    queued = [jobs.submit(Steps(n)) for n in range(3)]
    with pytest.raises(lrcore.InputError, match="3 jobs are waiting"):
        jobs.submit(Steps(3))
    jobs.cancel(queued[2].id)
    queued.append(jobs.submit(Steps(4)))
    monkeypatch.setattr("workbench.state.job_queue.MAX_WAITING", 100)
    monkeypatch.setattr("workbench.state.job_queue.MAX_WAITING_PER_CLIENT", 1)
    jobs._client = lambda: "one"
    queued.append(jobs.submit(Steps(5)))
    with pytest.raises(lrcore.InputError, match="1 of your jobs"):
        jobs.submit(Steps(6))
    jobs._client = lambda: "two"
    queued.append(jobs.submit(Steps(7)))
    gate.set()
    assert [wait_for_job(jobs, job).state for job in queued[3:]] == ["done"] * 3


def test_a_kind_of_job_needs_a_run_method():
    class Idle(Job):
        kind = title = "idle"

    with pytest.raises(TypeError, match="run"):
        Idle()


def test_waiting_and_running_jobs_can_be_canceled(bench):
    jobs, gate, order = bench
    first = jobs.submit(Steps(0))
    while not order:  # until the job starts
        time.sleep(0.01)
    second, third = (jobs.submit(Steps(n)) for n in (1, 2))
    jobs.cancel(second.id)
    assert second.state == "cancelled"
    assert job_markup.result(second) == "canceled"
    jobs.cancel(first.id)
    gate.set()
    assert wait_for_job(jobs, first).state == "cancelled"
    assert first.done < 4
    assert wait_for_job(jobs, third).state == "done"
    assert order == [0, 2]


def test_the_status_bar_shows_the_jobs_of_its_browser(tmp_path):
    gate, browser = threading.Event(), ["first"]
    jobs = JobQueue(tmp_path, TEST_KINDS, lambda _: gate.wait(PATIENCE) and [], lambda: browser[0])
    jobs.submit(Steps(0))
    assert "job 0" in job_markup.status_bar(jobs, "first")
    idle = job_markup.status_bar(jobs, "second")
    assert "job 0" not in idle
    assert words.compress.OTHERS_RUN in idle
    browser[0] = "second"
    last = jobs.submit(Steps(1))
    assert "1 before it" in job_markup.status_bar(jobs, "second")
    once = jobs.submit(Once(2))
    browser[0] = "third"
    assert jobs.submit(Once(2)) is once
    assert "job 2" in job_markup.status_bar(jobs, "third")
    for n in range(3):
        assert f"job {n}" in job_markup.job_list(jobs)
    gate.set()
    wait_for_job(jobs, last)
    assert "job 0" in job_markup.status_bar(jobs, "first")
    restarted_queue = JobQueue(tmp_path, TEST_KINDS, lambda _: [])
    assert "job 0" in job_markup.status_bar(restarted_queue, "first")
    assert "job" not in job_markup.status_bar(restarted_queue, "fourth")


def wait_for_start(order, count=1):
    end = time.monotonic() + PATIENCE
    while len(order) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_preemptible_job_is_paused_for_other_jobs(bench):
    jobs, gate, order = bench
    first = jobs.submit(Yielding(0))
    wait_for_start(order)
    later, requested = jobs.submit(Yielding(1)), jobs.submit(Steps(2))
    assert jobs.position(requested) < jobs.position(later)
    gate.set()
    assert [wait_for_job(jobs, job).state for job in (requested, first, later)] == ["done"] * 3
    assert order == [0, 2, 0, 1]
    assert any("paused for another job" in line for line in first.log)


def test_a_job_waits_for_its_prerequisite(bench):
    jobs, gate, order = bench
    first = jobs.submit(Yielding(0))
    wait_for_start(order)
    requested = jobs.submit(Steps(0))
    gate.set()
    assert [wait_for_job(jobs, job).state for job in (first, requested)] == ["done"] * 2
    assert order == [0, 0]


def test_a_paused_job_can_be_canceled(bench):
    jobs, gate, order = bench
    first = jobs.submit(Yielding(0))
    wait_for_start(order)
    requested = jobs.submit(Steps(1))
    jobs.cancel(first.id)
    gate.set()
    assert wait_for_job(jobs, first).state == "cancelled"
    assert wait_for_job(jobs, requested).state == "done"
    assert order == [0, 1]


def test_canceling_stops_a_job_within_a_layer(tmp_path):
    """The stage reports no progress but calls a network."""
    network = torch.nn.Sequential(torch.nn.Identity())
    began, passes = threading.Event(), []

    def work(record):
        network(torch.zeros(1))
        began.set()
        while True:
            network(torch.zeros(1))
            passes.append(record.canceled.is_set())

    jobs = JobQueue(tmp_path, TEST_KINDS, work)
    job = jobs.submit(Steps(0))
    assert began.wait(PATIENCE)
    network(torch.zeros(1))  # other threads are not canceled
    jobs.cancel(job.id)
    assert wait_for_job(jobs, job).state == "cancelled"
    assert sum(passes) <= 1
    network(torch.zeros(1))
    assert words.compress.CANCELING in job_markup.steps(job)


def test_canceling_stops_a_job_that_calls_no_network(tmp_path):
    """As in a library that suppresses every exception."""
    began = threading.Event()

    def work(record):
        began.set()
        while True:
            with suppress(Exception):
                torch.linalg.eigh(torch.eye(8))

    jobs = JobQueue(tmp_path, TEST_KINDS, work)
    job = jobs.submit(Steps(0))
    assert began.wait(PATIENCE)
    jobs.cancel(job.id)
    assert wait_for_job(jobs, job).state == "cancelled"


def test_errors_are_reported_in_one_line(bench):
    jobs, *_ = bench
    assert wait_for_job(jobs, jobs.submit(Wrong())).error == "no such thing: write another"
    error = wait_for_job(jobs, jobs.submit(Broken())).error
    assert error.startswith("RuntimeError: first line")
    assert "second" not in error


def test_the_worker_survives_a_base_exception(tmp_path):
    """As raised by the panic of a Rust library."""

    def work(record):
        if record.kind == "broken":
            raise BaseException("panic")
        return ["run-1"]

    jobs = JobQueue(tmp_path, TEST_KINDS, work)
    assert wait_for_job(jobs, jobs.submit(Broken())).error.startswith("BaseException: panic")
    assert wait_for_job(jobs, jobs.submit(Steps(0))).result == ["run-1"]


def test_an_equal_unique_job_is_not_queued_twice(bench):
    jobs, gate, _ = bench
    first_job = jobs.submit(Once(1))
    assert jobs.submit(Once(1)) is first_job
    assert jobs.submit(Once(2)) is not first_job
    steps = jobs.submit(Steps(1))
    assert jobs.submit(Steps(1)) is not steps
    gate.set()


def test_restarting_a_job_twice_queues_one_job(bench):
    jobs, gate, _ = bench
    gate.set()
    done = wait_for_job(jobs, jobs.submit(Steps(0)))
    jobs.restart(done.id)
    with pytest.raises(lrcore.InputError, match="restarted before"):
        jobs.restart(done.id)
    assert len(jobs.all()) == 1


def test_the_remaining_time_is_estimated_from_measured_steps(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("workbench.state.job_record.time.monotonic", lambda: clock[0])
    job = JobRecord(Steps(), state="running")
    job.progress("step", 0, 5)
    assert job.eta() is None
    for i in (1, 2):
        clock[0] += 3
        job.progress("step", i, 5)
    assert job.eta() == pytest.approx(9)
    job.progress("next stage", 0, 2)
    assert job.eta() is None


def test_the_remaining_time_of_a_part_is_estimated_from_its_steps_that_ended(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("workbench.state.job_record.time.monotonic", lambda: clock[0])
    job = JobRecord(Steps(), state="running")
    job.begin_step("choose: a", 0, 3)
    assert job.steps_eta() is None
    clock[0] += 10
    job.begin_step("choose: b", 1, 3)
    clock[0] += 4
    assert job.steps_eta() == pytest.approx(16)
    assert words.compress.STEPS_LEFT.format(words.compress.duration(16)) in job_markup.steps(job)
    job.part = "compress"
    assert job.steps_eta() is None


def test_stages_have_their_duration_and_its_estimate(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("workbench.state.job_record.time.monotonic", lambda: clock[0])
    job = JobRecord(Steps(), state="running")

    def run(stage, done, total, seconds):
        job.progress(stage, done, total)
        clock[0] += seconds

    run("load", 0, 1, 0.4)
    run("load", 1, 1, 0)
    run("compress", 2, 6, 4)  # resumed after two of six steps
    assert "4 s elapsed" in job_markup.steps(job)
    run("compress", 3, 6, 12)
    run("compress", 5, 6, 2)
    words = "load 0.4 s · compress 18 s (estimated 16 s)"
    job.progress("evaluate both", 0, 4)
    clock[0] += 7
    job.progress("evaluate both", 2, 4)
    row = job_markup.job_row(job, 0)
    assert words in row
    assert "7 s elapsed · about 7 s left" in row
    job.progress("evaluate both", 0, 4)  # of the next run
    assert f"{words} · evaluate both 7.0 s (estimated 14 s)" in job_markup.job_row(job, 0)
    job.end("done")
    restored = JobRecord.from_dict(json.loads(json.dumps(job.to_dict())), TEST_KINDS)
    restored.state = "done"
    assert "<li>compress 18 s (estimated 16 s)</li>" in job_markup.job_row(restored, 0)


@pytest.fixture
def full_disk(monkeypatch):
    """Make writing records fail while the returned list is not empty."""
    write, full = write_text, ["the disk"]

    def refused(path, text):
        if full:
            raise ResourceError("The disk is full.")
        write(path, text)

    monkeypatch.setattr("workbench.state.job_queue.write_text", refused)
    return full


def test_a_job_without_disk_space_for_its_record_is_refused(bench, full_disk):
    jobs, gate, _ = bench
    full_disk.clear()
    first = jobs.submit(Steps(0))
    full_disk.append("the disk")
    with pytest.raises(ResourceError):
        jobs.submit(Steps(1))
    assert jobs.all() == [first]
    gate.set()
    assert wait_for_job(jobs, first).state == "done"
    assert "not written" in first.log[-1]
    full_disk.clear()
    assert wait_for_job(jobs, jobs.submit(Steps(2))).state == "done"


def test_a_job_is_kept_if_a_full_disk_prevents_its_restart(bench, full_disk, tmp_path):
    jobs, gate, order = bench
    full_disk.clear()
    gate.set()
    done = wait_for_job(jobs, jobs.submit(Steps(0)))
    gate.clear()
    jobs.submit(Steps(1))
    wait_for_start(order, 2)
    full_disk.append("the disk")
    with pytest.raises(ResourceError):
        jobs.restart(done.id)
    assert jobs.get(done.id) is done
    assert (tmp_path / f"{done.id}.json").is_file()
    gate.set()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "Not enough memory"),
        (RuntimeError("can't allocate memory: you tried to allocate 4000000 bytes."), "4.0 MB"),
        (RuntimeError("can't start new thread"), "Not enough memory"),
        (ImportError("x.so: failed to map segment from shared object"), "Not enough memory"),
        (OSError(28, "No space left on device"), "the disk is full"),
    ],
)
def test_a_lack_of_memory_is_reported_and_the_next_job_runs(tmp_path, error, sentence):
    errors = [error]

    def work(record):
        if errors:
            raise errors.pop()
        return []

    jobs = JobQueue(tmp_path, TEST_KINDS, work)
    failed = wait_for_job(jobs, jobs.submit(Steps(0)))
    assert failed.state == "failed"
    assert sentence in failed.error
    assert "server's log" not in failed.error
    assert wait_for_job(jobs, jobs.submit(Steps(1))).state == "done"
