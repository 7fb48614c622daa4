"""What is known of a job that was queued: its state, progress, log and result."""

import logging
import threading
import time
import uuid
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import lrcore

from .job import Job
from .stages import MOST_STAGES, Stage

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
}  # the fields that are on disk, and what each is
LISTED = {"result": str, "curve": NUMBER, "log": str}  # of what a list consists


@dataclass
class JobRecord:
    """One job in the queue, or one that has ended; what a running job reports to.

    state: "queued", "running" or one of ENDED. stage, done, total: how far the present stage is.
    part: which of several parts, such as "run 2 of 6". result: ids of the runs it made. outcome,
    curve: see Reporter. created, started, ended: seconds since the epoch. put_off: another job is
    to go first. client: who queued it, where that is known. browsers: those that want it; None for
    anybody. was_read: a person has dismissed how it ended. stages: those that it has begun, oldest
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
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)
    put_off: threading.Event = field(default_factory=threading.Event, repr=False)
    was_read: bool = False
    client: Hashable = None
    browsers: set[Hashable] = field(default_factory=set, repr=False)
    _units: list[float] = field(default_factory=list, repr=False)
    _last: float = 0.0
    _began: float = 0.0  # when the present stage did

    def __post_init__(self) -> None:
        self.title = lrcore.without_paths(self.title or self.job.title)

    @property
    def kind(self) -> str:
        return self.job.kind

    @property
    def kept(self) -> bool:
        """Whether the record is on disk, and stays in the list after its end."""
        return self.job.kept

    def note(self, line: str) -> None:
        """Add a line to the log."""
        self.log.append(f"{time.strftime('%H:%M:%S')}  {lrcore.without_paths(line)}")
        log.info("job %s: %s", self.id, line)

    def progress(self, stage: str, done: int, total: int) -> None:
        """What the core calls once per layer or batch.

        Raises lrcore.Cancelled where somebody cancelled the job.
        """
        now = time.monotonic()
        if stage != self.stage:
            self.note(stage)
        if stage != self.stage or done < self.done:  # the same one again: of the next run, say
            self._close(now)
            self.stage, self._units, self._began = stage, [], now
            self.stages = [*self.stages, Stage(stage, self.part, done)][-MOST_STAGES:]
        elif done > self.done:
            self._units = [*self._units, (now - self._last) / (done - self.done)][-8:]
        self.done, self.total, self._last = done, total, now
        self.stages[-1].reached(now - self._began, done, total)
        log.info("job %s: %s %d/%d", self.id, stage, done, total)
        self.go_on()

    def _close(self, now: float) -> None:
        """The present stage, if there is one, ends now."""
        if self.stages:
            self.stages[-1].seconds = now - self._began

    def go_on(self) -> None:
        """Raises lrcore.Cancelled where the job was cancelled or another one is to go first."""
        if self.cancelled.is_set() or self.put_off.is_set():
            raise lrcore.Cancelled(f"{self.stage} {self.done}/{self.total}")

    def wait_again(self) -> None:
        """Back into the queue: another job goes first."""
        self.put_off.clear()
        self.state, self.stage, self.part, self.done, self.total = "queued", "", "", 0, 0
        self.stages = []
        self.note("put off: another job goes first")

    def start(self) -> None:
        self.state, self.started, self._last = "running", time.time(), time.monotonic()

    def end(self, state: str, error: str = "") -> None:
        """Write down how it ended; the caller sets `state` once that is on disk."""
        self._close(time.monotonic())
        stopped = state == "cancelled" and self.stage
        where = f" at {self.stage} {self.done}/{self.total}" if stopped else ""
        self.error, self.ended, self.part = lrcore.without_paths(error), time.time(), ""
        self.note(f"{state}{where}{': ' + error if error else ''}")

    def eta(self) -> float | None:
        """Seconds left in this stage, from the measured time of its last units; None until one
        unit was measured.
        """
        if self.state != "running" or not self._units or not self.total:
            return None
        return (self.total - self.done) * sum(self._units) / len(self._units)

    def elapsed(self) -> float:
        """Seconds since the present stage began; 0 before the first one."""
        return time.monotonic() - self._began if self.stages else 0.0

    def seconds(self) -> float:
        """How long it has run; 0 before it starts."""
        return 0.0 if self.started is None else (self.ended or time.time()) - self.started

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which `from_dict` reads."""
        own = {name: getattr(self, name) for name in STORED}
        return {"job": self.job.to_dict(), "stages": [asdict(one) for one in self.stages]} | own

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], kinds: Mapping[str, type[Job]]) -> "JobRecord":
        """A record from plain values; also those of earlier versions, which had the fields of the
        job under "spec" and its kind beside them.

        Raises KeyError, TypeError or ValueError for what is no record.
        """
        job = values.get("job") or {"kind": values["kind"], **values["spec"]}
        own = {name: values[name] for name in STORED if name in values}
        _check(own)
        own["stages"] = [_stage(one) for one in values.get("stages", [])]
        return cls(kinds[job["kind"]].from_dict(job), **own)


def _stage(values: Mapping[str, Any]) -> Stage:
    """A stage from plain values. Raises TypeError for what is none."""
    stage = Stage(**values)
    numbers = (stage.first, stage.seconds, stage.estimate or 0)
    texts = (stage.name, stage.part)
    if not all(isinstance(one, str) for one in texts) or not all(
        isinstance(one, NUMBER) for one in numbers
    ):
        raise TypeError("a stage in it is none")
    return stage


def _check(own: Mapping[str, Any]) -> None:
    """Raise TypeError for a field of a record that is of another kind than it has to be, ValueError
    for a state or a time that is none.
    """
    for name, value in own.items():
        entries = value if name in LISTED else ()
        if not isinstance(value, STORED[name]) or not all(
            isinstance(one, LISTED[name]) for one in entries
        ):
            raise TypeError(f"{name} is {type(value).__name__}")
    if own.get("state", "queued") not in (*ENDED, "queued", "running"):
        raise ValueError("its state is none")
    times = (own.get(name) for name in ("created", "started", "ended"))
    if not all(at is None or lrcore.is_date(at) for at in times):
        raise ValueError("a time in it is none")
