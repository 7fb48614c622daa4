"""Random sequences of requests to the store, with invariants checked after each step. The jobs are
steps that the test controls, so that timing does not matter.
"""

import itertools
import json
import queue
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import hypothesis
import pytest
from campaign import SEED, long, short
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lrcore
from workbench.state.job import Job
from workbench.state.job_queue import SERVERS
from workbench.state.job_record import ENDED, JobRecord
from workbench.state.objects import LIMITS
from workbench.state.store import Store

PATIENCE = 60.0  # seconds to wait for the worker
NAMES = st.sampled_from(
    ("a", "a' or 1=1 --", '"; drop table runs; --', "<script>x</script>", "\u202eabc", "é" * 90, "")
)
TAGS = st.sampled_from(("good", "v1.0", "a+b", "x' or '1'='1", "no tag", ""))
INDEX = st.integers(0, 9)  # index modulo the number of entries


@dataclass(frozen=True)
class Steps(Job):
    """Job that asks the test for its next step. n: distinguishes jobs."""

    kind: ClassVar[str] = "steps"
    n: int = 0

    @property
    def title(self) -> str:
        return f"{self.kind} {self.n}"

    def run(self, store, reporter):
        return store.desk.work(reporter)


@dataclass(frozen=True)
class Once(Steps):
    kind: ClassVar[str] = "once"
    is_unique: ClassVar[bool] = True


@dataclass(frozen=True)
class Unkept(Steps):
    kind: ClassVar[str] = "unkept"
    is_stored: ClassVar[bool] = False
    is_unique: ClassVar[bool] = True
    is_preemptible: ClassVar[bool] = True

    def is_prerequisite_of(self, other):
        return other.n == self.n


KINDS = {kind.kind: kind for kind in (Steps, Once, Unkept)}


class Desk:
    """Queues between the worker, which asks for its next step, and the test, which answers."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def work(self, reporter) -> list[str]:
        for done in itertools.count():
            self.asked.put(reporter.id)
            answer = self.answers.get()
            if answer == "wrong":
                raise lrcore.InputError("No such thing. Write another.")
            if answer == "broken":
                raise RuntimeError("first line\nsecond line")
            if answer == "done":
                return ["run"]
            reporter.progress("step", done, 1000)
        raise AssertionError


class Pages(RuleBasedStateMachine):
    """Requests of pages to a store, and restarts of the server."""

    model: ClassVar[lrcore.LoadedModel]  # model saved in the runs

    def __init__(self):
        super().__init__()
        self.workspace = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.runs: dict[str, tuple[str, set[str]]] = {}  # name and tags by id
        self.deleted: list[str] = []
        self.open()

    def open(self):
        self.store = Store(Path(self.workspace.name), KINDS)
        self.store.desk = Desk()
        self.asks = ""  # id of the job with a worker that waits for an answer
        self.objects: dict[str, dict[int, str]] = {"dense": {}, "live": {}}

    def close(self):
        """Disconnect the store from the disk, as after a kill, and let its worker end."""
        jobs = self.store.jobs
        jobs._write = lambda *_: None
        jobs._records = {}
        self.store.desk.answers.put("done")

    def teardown(self):
        self.close()
        self.workspace.cleanup()

    def choose_plan(self):
        """Wait until the worker asks or is idle."""
        end = time.monotonic() + PATIENCE
        while not self.asks and self.store.jobs.waiting():
            try:
                self.asks = self.store.desk.asked.get(timeout=0.01)
            except queue.Empty:
                assert time.monotonic() < end, self.store.jobs.all()

    def record(self, index: int) -> JobRecord | None:
        records = self.store.jobs.all()
        return records[index % len(records)] if records else None

    # --- jobs ---

    @rule(kind=st.sampled_from(sorted(KINDS)), n=st.integers(0, 3))
    def submit(self, kind, n):
        job = KINDS[kind](n)
        equal = [
            waiting_record
            for waiting_record in self.store.jobs.waiting()
            if waiting_record.job == job
        ]
        record = self.store.jobs.submit(job)
        assert (record in equal) == (job.is_unique and bool(equal))
        self.choose_plan()

    @precondition(lambda self: self.asks)
    @rule(answer=st.sampled_from(("step", "step", "step", "done", "wrong", "broken")))
    def answer(self, answer):
        record = self.store.jobs.get(self.asks)
        cancelled, preempted = record.canceled.is_set(), record.preempted.is_set()
        self.asks = ""
        self.store.desk.answers.put(answer)
        if answer == "step" and preempted and not cancelled:
            self.asks = self.store.desk.asked.get(timeout=PATIENCE)
            assert record.id != self.asks or len(self.store.jobs.waiting()) == 1
            return
        if answer != "step" or cancelled:
            end = time.monotonic() + PATIENCE
            while record.state not in ENDED:
                assert time.monotonic() < end
                time.sleep(0.0005)
            ends = {"step": "cancelled", "done": "done", "wrong": "failed", "broken": "failed"}
            assert record.state == ends[answer]
            assert "\n" not in record.error
        self.choose_plan()

    @rule(index=INDEX)
    def cancel(self, index):
        record = self.record(index)
        if record is None:
            return
        before = record.state
        self.store.jobs.cancel(record.id)
        assert record.state == ("cancelled" if before == "queued" else before)

    @rule(index=INDEX)
    def start_again(self, index):
        record = self.record(index)
        if record is None or record.state not in ENDED:
            with pytest.raises(lrcore.InputError):
                self.store.jobs.restart(record.id if record else "none")
            return
        fresh = self.store.jobs.restart(record.id)
        assert self.store.jobs.get(record.id) is None
        assert (fresh.job, fresh.title) == (record.job, record.title)
        self.choose_plan()

    @rule(index=INDEX)
    def forget(self, index):
        record = self.record(index)
        if record is not None:
            self.store.jobs.remove(record.id)
            assert (self.store.jobs.get(record.id) is None) == (record.state in ENDED)

    # --- runs ---

    @rule(name=NAMES)
    def keep(self, name):
        run = self.store.save_run(name, self.model.recipe, self.model)
        self.runs[run.id] = (name, set())

    @precondition(lambda self: self.runs)
    @rule(index=INDEX, name=NAMES)
    def rename(self, index, name):
        run_id = sorted(self.runs)[index % len(self.runs)]
        if name.strip():
            self.store.runs.rename(run_id, name)
            self.runs[run_id] = (name.strip()[:80], self.runs[run_id][1])
        else:
            with pytest.raises(lrcore.InputError):
                self.store.runs.rename(run_id, name)

    @precondition(lambda self: self.runs)
    @rule(index=INDEX, tag=TAGS, takes=st.booleans())
    def tag(self, index, tag, takes):
        run_id = sorted(self.runs)[index % len(self.runs)]
        tags = self.runs[run_id][1]
        if takes:
            self.store.runs.untag(run_id, tag)
            tags.discard(tag)
        elif tag in ("good", "v1.0", "a+b"):
            self.store.runs.tag(run_id, tag)
            tags.add(tag)
        else:
            with pytest.raises(lrcore.InputError):
                self.store.runs.tag(run_id, tag)

    @precondition(lambda self: self.runs)
    @rule(index=INDEX)
    def delete(self, index):
        run_id = sorted(self.runs)[index % len(self.runs)]
        self.store.delete(run_id)
        del self.runs[run_id]
        self.deleted.append(run_id)
        with pytest.raises(lrcore.InputError):
            self.store.delete(run_id)
        assert self.store.objects.peek("small", run_id) is None

    # --- objects ---

    @rule(kind=st.sampled_from(("dense", "live")), key=st.integers(0, 4))
    def look(self, kind, key):
        cached, made = self.objects[kind], []
        value = self.store.objects.get(kind, key, lambda: made.append(key) or f"{kind} {key}")
        assert bool(made) == (key not in cached)
        cached.pop(key, None)
        cached[key] = value  # the last used object is the newest
        for oldest in list(cached)[: -LIMITS[kind]]:
            del cached[oldest]

    @rule(kind=st.sampled_from(("dense", "live")), key=st.integers(0, 4))
    def drop(self, kind, key):
        self.store.objects.drop(kind, key)
        self.objects[kind].pop(key, None)

    # --- the server ---

    @rule()
    def restart(self):
        before = {
            record.id: record.to_dict() for record in self.store.jobs.all() if record.is_stored
        }
        self.close()
        self.open()
        after = {record.id: record.to_dict() for record in self.store.jobs.all()}
        assert after.keys() == before.keys()
        for name, record in after.items():
            if before[name]["state"] in ENDED:
                assert record == before[name]
            else:
                assert (record["job"], record["state"]) == (before[name]["job"], "interrupted")

    # --- invariants ---

    @invariant()
    def the_queue_is_in_order(self):
        jobs = self.store.jobs
        running = [record.id for record in jobs.all() if record.state == "running"]
        assert running == ([self.asks] if self.asks else [])
        waiting = jobs.waiting()
        assert waiting == sorted(
            waiting,
            key=lambda record: (record.id != self.asks, record.job.is_preemptible, record.created),
        )
        assert [jobs.position(record) for record in waiting] == list(range(len(waiting)))
        wanted_once = [record.job for record in waiting if record.job.is_unique]
        assert len(set(wanted_once)) == len(wanted_once)
        current = jobs.running()
        if current is not None and current.job.is_preemptible and not current.preempted.is_set():
            assert all(
                record.job.is_preemptible or current.job.is_prerequisite_of(record.job)
                for record in waiting
            )

    @invariant()
    def the_disk_agrees_with_the_queue(self):
        folder = self.store.jobs.folder
        records_by_id = {record.id: record for record in self.store.jobs.all() if record.is_stored}
        names = {f"{name}.json" for name in records_by_id}
        assert {path.name for path in folder.iterdir()} - {SERVERS} == names
        for name, record in records_by_id.items():
            stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            assert (stored["state"] in ENDED) == (record.state in ENDED)
            if record.state in ENDED:
                assert JobRecord.from_dict(stored, KINDS).to_dict() == record.to_dict()

    @invariant()
    def the_runs_are_the_saved_ones(self):
        store = self.store
        assert set(store.runs.ids()) == self.runs.keys()
        stored_runs = {run.id: (run.name, set(run.tags)) for run in store.runs.all()}
        assert stored_runs == self.runs
        assert {run.id for run in store.runs_by_id([*self.runs, *self.deleted])} == set(self.runs)
        folder_names = {path.name for path in store.runs.folder.iterdir() if path.is_dir()}
        assert folder_names == {*self.runs, ".jobs"}

    @invariant()
    def the_object_cache_has_the_last_used_objects(self):
        for kind, cached in self.objects.items():
            assert list(self.store.objects._objects[kind].items()) == list(cached.items())


@pytest.fixture
def pages(small_of, tiny_llama) -> type[Pages]:
    Pages.model = small_of(tiny_llama, "svd", samples=2, seq_len=16)
    return Pages


def test_a_few_sequences_of_requests_preserve_the_invariants(pages):
    run_state_machine_as_test(pages, settings=short(5, stateful_step_count=20))


@pytest.mark.soak
def test_many_sequences_of_requests_preserve_the_invariants(pages, capsys):
    steps = 0

    class Counted(pages):
        def check_invariants(self, *values):
            nonlocal steps
            steps += 1
            super().check_invariants(*values)

    settings = long(500, stateful_step_count=60)
    hypothesis.seed(SEED)(Counted)
    run_state_machine_as_test(Counted, settings=settings)
    with capsys.disabled():
        print(f"\nseed {SEED}: {settings.max_examples} orders, {steps} steps")
