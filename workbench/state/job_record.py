"""Records of jobs: state, progress, stages, log and result."""

import logging
import threading
import time
import uuid
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lrcore.runs.database import is_date
from lrcore.system.errors import Cancelled
from lrcore.system.path_access import strip_paths

from .job import Job, read_job

log = logging.getLogger("workbench.jobs")

ENDED = ("done", "failed", "cancelled", "interrupted")
NUMBER = int | float
STORED: dict[str, Any] = {
    "id": str,
    "title": str,
    "state": str,
    "stage": str,
    "done": int,
    "total": int,
    "error": str,
    "result": list,
    "outcome": str,
    "curve": list,
    "created": NUMBER,
    "started": NUMBER | None,
    "ended": NUMBER | None,
    "was_read": bool,
    "log": list,
}  # fields on disk, and their types
ELEMENT_TYPES = {"result": str, "curve": NUMBER, "log": str}  # of lists

MIN_ESTIMATED_SECONDS = 1.0  # shorter stages need no estimate
MAX_STAGES = 60  # per record; a sweep has several stages per run
RECENT_UNITS = 8  # units whose time predicts the remaining time


def state_label(state: str) -> str:
    """Return a state as text for readers. Stored records spell one state differently."""
    return "canceled" if state == "cancelled" else state


@dataclass
class Stage:
    """A stage of a job, updated while the job runs.

    part: the part of the job, such as "run 2 of 6". first: number of units that were done at the
    start. seconds: time until the last unit, or in total. estimate: total time in seconds,
    estimated from the first units; None for a short stage.
    """

    name: str
    part: str = ""
    first: int = 0
    seconds: float = 0.0
    estimate: float | None = None

    def update(self, seconds: float, done: int, total: int) -> None:
        """Record that `done` of `total` units were done after `seconds`."""
        self.seconds = seconds
        completed = done - self.first
        is_long = seconds >= MIN_ESTIMATED_SECONDS and completed > 0 and done < total
        if self.estimate is None and is_long:
            self.estimate = seconds * (total - self.first) / completed


@dataclass(frozen=True)
class Steps:
    """Similar steps of a job: done, total, start of the first (monotonic seconds), and seconds of
    those that are done. part: of the current step.
    """

    part: str = ""
    done: int = 0
    total: int = 0
    start: float = 0.0
    seconds: float = 0.0


@dataclass
class JobRecord:
    """A job in the queue, or a job that has ended. It is the `Reporter` of a running job.

    state: "queued", "running" or one of ENDED. stage, done, total: progress of the current stage.
    part: the current part, such as "run 2 of 6". result: ids of the new runs. outcome, curve: see
    `Reporter`. created, started, ended: seconds since the epoch. preempted: set if another job must
    run first. client: the client that queued the job, if known. clients: all clients
    that requested it; empty if unknown. browsers: the browsers that need
    the job; None for any browser. was_read: whether a person dismissed the result. stages: oldest
    first.
    """

    job: Job
    title: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    state: str = "queued"
    stage: str = ""
    done: int = 0
    total: int = 0
    part: str = ""
    error: str = ""
    result: list[str] = field(default_factory=list)
    outcome: str = ""
    curve: list[float] = field(default_factory=list)
    created: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None
    stages: list[Stage] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    canceled: threading.Event = field(default_factory=threading.Event, repr=False)
    preempted: threading.Event = field(default_factory=threading.Event, repr=False)
    was_read: bool = False
    client: Hashable = None
    clients: set[Hashable] = field(default_factory=set, repr=False)
    browsers: set[Hashable] = field(default_factory=set, repr=False)
    _unit_seconds: list[float] = field(default_factory=list, repr=False)
    _last_progress: float = 0.0
    _stage_start: float = 0.0
    _steps: Steps = field(default_factory=Steps, repr=False)

    def __post_init__(self) -> None:
        self.title = strip_paths(self.title or self.job.title)

    @property
    def kind(self) -> str:
        return self.job.kind

    @property
    def is_stored(self) -> bool:
        """Whether the record is on disk, and stays in the list after the job has ended."""
        return self.job.is_stored

    def concerns(self, client: Hashable) -> bool:
        """Return True if a client requested the job, or if one of the two is unknown."""
        return client is None or not self.clients or client in self.clients

    def add_log(self, line: str) -> None:
        """Add a line to the log."""
        self.log.append(f"{time.strftime('%H:%M:%S')}  {strip_paths(line)}")
        log.info("job %s: %s", self.id, line)

    def begin_step(self, part: str, done: int, total: int) -> None:
        """Record the part, and the time of the steps before, for `steps_eta`."""
        current_time = time.monotonic()
        start = self._steps.start if done else current_time
        self.part, self._steps = part, Steps(part, done, total, start, current_time - start)

    def progress(self, stage: str, done: int, total: int) -> None:
        """Record the progress of a stage; called by lrcore after each layer or batch.

        Raises Cancelled if the job was canceled or preempted.
        """
        current_time = time.monotonic()
        if stage != self.stage:
            self.add_log(stage)
        if stage != self.stage or done < self.done:  # a stage repeats, for example for the next run
            self._close_stage(current_time)
            self.stage, self._unit_seconds, self._stage_start = stage, [], current_time
            self.stages = [*self.stages, Stage(stage, self.part, done)][-MAX_STAGES:]
        elif done > self.done:
            unit_seconds = (current_time - self._last_progress) / (done - self.done)
            self._unit_seconds = [*self._unit_seconds, unit_seconds][-RECENT_UNITS:]
        self.done, self.total, self._last_progress = done, total, current_time
        self.stages[-1].update(current_time - self._stage_start, done, total)
        log.info("job %s: %s %d/%d", self.id, stage, done, total)
        self.check_canceled()

    def _close_stage(self, current_time: float) -> None:
        if self.stages:
            self.stages[-1].seconds = current_time - self._stage_start

    def check_canceled(self) -> None:
        """Raise Cancelled if the job was canceled or preempted."""
        if self.canceled.is_set() or self.preempted.is_set():
            raise Cancelled(f"{self.stage} {self.done}/{self.total}")

    def requeue(self) -> None:
        """Return a preempted job to the queue."""
        self.preempted.clear()
        self.state, self.stage, self.part, self.done, self.total = "queued", "", "", 0, 0
        self.stages = []
        self.add_log("paused for another job")

    def start(self) -> None:
        self.state, self.started, self._last_progress = "running", time.time(), time.monotonic()

    def end(self, state: str, error: str = "") -> None:
        """Record the end of the job; the caller sets `state` after the record was written."""
        self._close_stage(time.monotonic())
        is_stopped = state == "cancelled" and self.stage
        position = f" at {self.stage} {self.done}/{self.total}" if is_stopped else ""
        self.error, self.ended, self.part = strip_paths(error), time.time(), ""
        self.add_log(f"{state_label(state)}{position}{': ' + error if error else ''}")

    def eta(self) -> float | None:
        """Return the remaining seconds of the stage, from the time of its last units.

        Returns None until a unit was timed.
        """
        if self.state != "running" or not self._unit_seconds or not self.total:
            return None
        return (self.total - self.done) * sum(self._unit_seconds) / len(self._unit_seconds)

    def steps_eta(self) -> float | None:
        """Return the remaining seconds of the similar steps, from the time of those before.

        Returns None until one step ended, and after the last.
        """
        steps = self._steps
        if self.state != "running" or not steps.done or self.part != steps.part:
            return None
        elapsed = time.monotonic() - steps.start
        return max(0.0, steps.seconds * steps.total / steps.done - elapsed)

    def elapsed(self) -> float:
        """Return the seconds since the start of the current stage; 0 before the first stage."""
        return time.monotonic() - self._stage_start if self.stages else 0.0

    def seconds(self) -> float:
        """Return the running time in seconds; 0 before the job starts."""
        return 0.0 if self.started is None else (self.ended or time.time()) - self.started

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, see `from_dict`."""
        stages = [asdict(stage) for stage in self.stages]
        stored = {name: getattr(self, name) for name in STORED}
        clients = sorted(map(str, self.clients))
        return {"job": self.job.to_dict(), "stages": stages, "clients": clients} | stored

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], kinds: Mapping[str, type[Job]]) -> "JobRecord":
        """Return the record of plain values.

        Records of earlier versions had the fields of the job in "spec", and its kind at top level.
        Raises KeyError, TypeError or ValueError for invalid values.
        """
        job = values.get("job") or {"kind": values["kind"], **values["spec"]}
        stored = {name: values[name] for name in STORED if name in values}
        _check(stored)
        stages = [_read_stage(stage) for stage in values.get("stages", [])]
        clients = _read_clients(values.get("clients", []))
        return cls(read_job(job, kinds), stages=stages, clients=clients, **stored)


def _read_clients(values: Any) -> set[Hashable]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError("invalid clients")
    return set(values)


def _read_stage(values: Mapping[str, Any]) -> Stage:
    stage = Stage(**values)
    numbers = (stage.first, stage.seconds, stage.estimate or 0)
    texts = (stage.name, stage.part)
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(number, NUMBER) for number in numbers
    ):
        raise TypeError("invalid stage")
    return stage


def _check(stored: Mapping[str, Any]) -> None:
    """Check the fields of a record.

    Raises TypeError for a field of the wrong type, and ValueError for an invalid state or time.
    """
    for name, value in stored.items():
        elements = value if name in ELEMENT_TYPES else ()
        if not isinstance(value, STORED[name]) or not all(
            isinstance(element, ELEMENT_TYPES[name]) for element in elements
        ):
            raise TypeError(f"{name} is {type(value).__name__}")
    if stored.get("state", "queued") not in (*ENDED, "queued", "running"):
        raise ValueError("invalid state")
    times = (stored.get(name) for name in ("created", "started", "ended"))
    if not all(value is None or is_date(value) for value in times):
        raise ValueError("invalid time")
