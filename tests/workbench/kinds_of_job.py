"""Kinds of jobs for tests of the queue, with five steps each."""

import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
from page_server import PATIENCE

from workbench.state.job import Job
from workbench.state.job_record import ENDED


@dataclass(frozen=True)
class Steps(Job):
    """A job of five steps; the fixture `bench` does its work."""

    kind: ClassVar[str] = "steps"
    n: int = 0

    @property
    def title(self) -> str:
        return f"job {self.n}"

    def run(self, store, reporter):
        pytest.fail("the queue called `run` instead of the fixture's function")


@dataclass(frozen=True)
class Once(Steps):
    kind: ClassVar[str] = "once"
    is_unique: ClassVar[bool] = True


@dataclass(frozen=True)
class Unstored(Steps):
    kind: ClassVar[str] = "unstored"
    is_stored: ClassVar[bool] = False


@dataclass(frozen=True)
class Yielding(Steps):
    kind: ClassVar[str] = "yielding"
    is_preemptible: ClassVar[bool] = True

    def is_prerequisite_of(self, other):
        return other.n == self.n


@dataclass(frozen=True)
class Wrong(Steps):
    kind: ClassVar[str] = "wrong"


@dataclass(frozen=True)
class Broken(Steps):
    kind: ClassVar[str] = "broken"


TEST_KINDS = {kind.kind: kind for kind in (Steps, Once, Unstored, Yielding, Wrong, Broken)}


def wait_for_job(jobs, job, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while jobs.get(job.id).state not in ENDED:
        assert time.monotonic() < end, job
        time.sleep(0.01)
    return jobs.get(job.id)
