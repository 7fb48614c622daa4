"""Jobs: values that describe work, so that it can be queued, stored and started again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

import lrcore

FORMER_KINDS = {  # kinds in records of earlier versions
    "analyse": "analyze",
    "quantise": "quantize",
    "shorten": "prune_layers",
}
FORMER_FIELDS = {"run": "run_id"}  # fields in records of earlier versions


class Reporter(Protocol):
    """Interface through which a running job reports; `JobRecord` implements it.

    id: of the record. part: the current part, such as "run 2 of 6". result: ids of the runs made so
    far. outcome: a one-line summary of the result. curve: the loss at each training step,
    nats/token.
    """

    id: str
    part: str
    result: list[str]
    outcome: str
    curve: list[float]

    def add_log(self, line: str) -> None:
        """Add a line to the log."""

    def begin_step(self, part: str, done: int, total: int) -> None:
        """Begin one of several similar steps of a job, after `done` of `total`. part: its name."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Report progress after each layer or batch. Raises Cancelled for a canceled job."""


@dataclass(frozen=True)
class Job(ABC):
    """Base class of jobs.

    kind: name in records. is_stored: whether the record is written to disk. is_unique: whether an
    equal job that waits or runs is used instead of a second job. is_preemptible: whether the job
    stops for other jobs, and continues after them with its previous results. opens_answers: whether
    the page of the browser that queued the job opens the answers of its run at the end. phases: the
    names that the parts of the job begin with, in order; one bar displays their progress.
    """

    kind: ClassVar[str]
    is_stored: ClassVar[bool] = True
    is_unique: ClassVar[bool] = False
    is_preemptible: ClassVar[bool] = False
    opens_answers: ClassVar[bool] = False
    phases: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """Title on the page."""

    @abstractmethod
    def run(self, store: Any, reporter: Reporter) -> list[str]:
        """Run the job with the objects of a `Store`; returns the ids of the new runs.

        Raises lrcore.InputError for invalid settings and Cancelled for a canceled job.
        """

    def is_prerequisite_of(self, other: "Job") -> bool:
        """Return True if the other job needs the result of this job, and so waits for it."""
        del other
        return False

    def prepares(self, recipe: lrcore.Recipe) -> bool:
        """Return True if this job computes the factors and the evidence of a recipe."""
        del recipe
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return kind and fields as plain values for JSON."""
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        """Return the job of the plain values that `to_dict` returned.

        Raises InputError for invalid values, and TypeError for an unknown field.
        """
        current = {FORMER_FIELDS.get(name, name): value for name, value in values.items()}
        current.pop("kind", None)
        return cls(**{name: _read(name, value) for name, value in current.items()})


def read_job(values: Mapping[str, Any], kinds: Mapping[str, type[Job]]) -> Job:
    """Return the job of a record, which may be from an earlier version.

    Raises KeyError for an unknown kind, and like `Job.from_dict`.
    """
    kind = values["kind"]
    return kinds[FORMER_KINDS.get(kind, kind)].from_dict(values)


_READERS = {
    "recipe": lrcore.Recipe.from_dict,
    "evaluation": lambda settings: lrcore.EvaluationSettings(**settings),
    "healing": lambda settings: lrcore.Healing(**settings),
}


def _read(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _READERS[name](value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, lrcore.Recipe):
        return value.to_dict()
    if isinstance(value, lrcore.EvaluationSettings | lrcore.Healing):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value
