"""Jobs: one worker thread, a queue, progress and cancel.

The registry lives on the server, so a page reload loses nothing.
"""

import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lrcore

log = logging.getLogger("workbench.jobs")

ENDED = ("done", "failed", "cancelled", "interrupted")
KEPT = (
    "id",
    "kind",
    "title",
    "spec",
    "state",
    "stage",
    "done",
    "total",
    "error",
    "result",
    "created",
    "started",
    "ended",
    "log",
)


@dataclass
class Job:
    """One piece of work.

    `spec` is plain data: whoever has it can run the job again, after a restart as well.
    """

    kind: str
    title: str
    spec: dict[str, Any]
    kept: bool = True
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    state: str = "queued"
    stage: str = ""
    done: int = 0
    total: int = 0
    part: str = ""
    error: str = ""
    result: list[str] = field(default_factory=list)
    created: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None
    log: list[str] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)
    _units: list[float] = field(default_factory=list, repr=False)
    _last: float = 0.0

    def say(self, line: str) -> None:
        self.log.append(f"{time.strftime('%H:%M:%S')}  {line}")
        log.info("job %s: %s", self.id, line)

    def progress(self, stage: str, done: int, total: int) -> None:
        """What the core calls once per layer or batch.

        Raises lrcore.Cancelled when somebody asked to stop.
        """
        now = time.monotonic()
        if stage != self.stage:
            self.say(stage)
            self.stage, self._units = stage, []
        elif done > self.done:
            self._units = [*self._units, (now - self._last) / (done - self.done)][-8:]
        self.done, self.total, self._last = done, total, now
        log.info("job %s: %s %d/%d", self.id, stage, done, total)
        if self.cancelled.is_set():
            raise lrcore.Cancelled(f"{stage} {done}/{total}")

    def eta(self) -> float | None:
        """Seconds left in this stage, from the measured time of its last units; None until one
        unit was measured.
        """
        if self.state != "running" or not self._units or not self.total:
            return None
        return (self.total - self.done) * sum(self._units) / len(self._units)

    def seconds(self) -> float:
        return 0.0 if self.started is None else (self.ended or time.time()) - self.started

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KEPT}


class Jobs:
    """The queue and its one worker.

    `work[kind](job)` does the work and returns the ids of the runs it made.
    """

    def __init__(self, folder: Path, work: Mapping[str, Callable[[Job], list[str]]]) -> None:
        self.folder, self.work = folder, work
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._queue: queue.Queue[str] = queue.Queue()
        self._read()
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def submit(
        self, kind: str, title: str, spec: dict[str, Any], kept: bool = True, once: bool = False
    ) -> Job:
        """Put a job in the queue.

        once: a waiting or running job with the same spec is returned instead of a second one.
        """
        with self._lock:
            if once:
                for job in self.waiting():
                    if (job.kind, job.spec) == (kind, spec):
                        return job
            job = Job(kind, title, spec, kept)
            self._jobs[job.id] = job
        self._write(job)
        self._queue.put(job.id)
        return job

    def cancel(self, job_id: str) -> None:
        """Ask a job to stop: a waiting one leaves the queue at once, a running one stops after
        its present layer.
        """
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None or job.state in ENDED:
                return
            job.cancelled.set()
            job.say("cancel asked")
            if job.state == "queued":
                self._end(job, "cancelled")

    def again(self, job_id: str) -> Job:
        """A new job from an ended one's spec.

        What the ended one had finished on disk is not computed twice.
        """
        old = self._jobs[job_id]
        self.forget(job_id)
        return self.submit(old.kind, old.title, old.spec)

    def forget(self, job_id: str) -> None:
        with self._lock:
            if self._jobs.get(job_id) is not None and self._jobs[job_id].state in ENDED:
                del self._jobs[job_id]
                (self.folder / f"{job_id}.json").unlink(missing_ok=True)

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: job.created)

    def running(self) -> Job | None:
        return next((job for job in self.all() if job.state == "running"), None)

    def waiting(self) -> list[Job]:
        """The running job and those queued, in the order they will run."""
        return sorted(
            (job for job in self.all() if job.state not in ENDED),
            key=lambda job: job.state != "running",
        )

    def place(self, job: Job) -> int:
        """How many jobs come before this one."""
        return next((i for i, other in enumerate(self.waiting()) if other.id == job.id), 0)

    def _run(self) -> None:
        while True:
            job = self._jobs.get(self._queue.get())
            with self._lock:
                if job is None or job.state != "queued":
                    continue
                job.state, job.started, job._last = "running", time.time(), time.monotonic()
            self._write(job)
            log.info("job %s: %s starts", job.id, job.title)
            try:
                job.result = self.work[job.kind](job)
                self._end(job, "done")
            except lrcore.Cancelled:
                self._end(job, "cancelled")
            except lrcore.InputError as error:
                self._end(job, "failed", str(error))
            except Exception as error:
                log.exception("job %s failed", job.id)
                line = (str(error).strip().splitlines() or [""])[0][:300]
                self._end(
                    job,
                    "failed",
                    f"{type(error).__name__}: {line} The server's log has the details.",
                )

    def _end(self, job: Job, state: str, error: str = "") -> None:
        where = (
            f" at {job.stage} {job.done}/{job.total}" if state == "cancelled" and job.stage else ""
        )
        job.error, job.ended, job.part = error, time.time(), ""
        job.say(f"{state}{where}{': ' + error if error else ''}")
        self._write(
            job,
            state,
            # first on disk: a job that is seen to have ended may be forgotten, and then must not be
            # written again
        )
        job.state = state

    def _write(self, job: Job, state: str = "") -> None:
        if not job.kept:
            return
        whole = self.folder / f"{job.id}.json"
        partial = (
            self.folder / f"{job.id}.{uuid.uuid4().hex[:8]}.tmp"
        )  # of this write alone: a worker and a page may write one job at once
        partial.write_text(
            json.dumps(job.record() | {"state": state or job.state}), encoding="utf-8"
        )
        os.replace(partial, whole)  # a reader never sees half a record

    def _read(self) -> None:
        for path in sorted(self.folder.glob("*.json")):
            try:
                job = Job(**json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, TypeError):
                log.warning("%s is no job record and is left out", path.name)
                continue
            if job.state not in ENDED:
                job.state, job.ended = "interrupted", job.ended or time.time()
                job.say("interrupted: the server stopped while this job ran or waited")
            self._jobs[job.id] = job
            self._write(job)
