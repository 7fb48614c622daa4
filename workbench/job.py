"""A job is a value: what to do, whole, so that it can be queued, stored and started again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

import lrcore


class Reporter(Protocol):
    """What a running job reports to; a JobRecord is one.

    id: of the record. part: which of several parts runs. result: ids of the runs made so far.
    outcome: in one line what came out, as far as it is known. curve: the loss at every step of a
    training, nats/token.
    """

    id: str
    part: str
    result: list[str]
    outcome: str
    curve: list[float]

    def note(self, line: str) -> None:
        """Add a line to the log."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Called once per layer or batch. Raises lrcore.Cancelled where the job was cancelled."""


@dataclass(frozen=True)
class Job(ABC):
    """The base of every kind of job.

    kind: its name in records. kept: whether its record is on disk. once: whether an equal job that
    waits or runs serves for a second one. yields: whether it lets others go first, and goes on
    after them with what it has computed so far.
    """

    kind: ClassVar[str]
    kept: ClassVar[bool] = True
    once: ClassVar[bool] = False
    yields: ClassVar[bool] = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What the page calls it."""

    @abstractmethod
    def run(self, store: Any, reporter: Reporter) -> list[str]:
        """Do it with what a Store holds; returns the ids of the runs it made.

        Raises lrcore.InputError where it cannot be done, lrcore.Cancelled where it was cancelled.
        """

    def serves(self, other: "Job") -> bool:
        """Whether the other job needs what this one computes, so that it should wait for it."""
        del other
        return False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: its kind and its fields."""
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        """A job of this kind from what `to_dict` gives.

        Raises InputError, or TypeError for a field that it does not have.
        """
        own = {RENAMED.get(name, name): one for name, one in values.items() if name != "kind"}
        return cls(**{name: _read(name, one) for name, one in own.items()})


RENAMED = {"run": "run_id"}  # fields of records that earlier versions wrote
READ = {
    "recipe": lrcore.Recipe.from_dict,
    "evaluation": lambda settings: lrcore.EvaluationSettings(**settings),
    "healing": lambda settings: lrcore.Healing(**settings),
}


def _read(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return READ[name](value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, lrcore.Recipe):
        return value.to_dict()
    if isinstance(value, lrcore.EvaluationSettings | lrcore.Healing):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value
