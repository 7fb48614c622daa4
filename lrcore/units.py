"""Units of work: the one place where the core hands work to others.

Calibration windows, layers, probes and cells of a sweep are units. They are done here, one after
another, unless `worked_by` has named other workers (see lrcore/cluster/).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .progress import Progress

Unit = TypeVar("Unit")
Result = TypeVar("Result")


def _alike(unit: Any) -> Hashable:
    del unit
    return None


@dataclass(frozen=True)
class Work(Generic[Unit, Result]):
    """The same task for every unit.

    stage: what progress calls it. task(unit, progress): the result of one unit; whatever else it
    needs it carries with it, so that it can be sent to another process, together with the unit, and
    done there, or done again where that process dies. together: units of one key share what the
    task computes once, so they go to one worker after another.
    """

    stage: str
    task: Callable[[Unit, Progress], Result]
    together: Callable[[Unit], Hashable] = _alike


class Workers(Protocol):
    """Who does the units.

    count: how many are done at a time. apart: whether that happens in other processes, which read
    and write values of the size of a model in the folder of the cache.
    """

    @property
    def count(self) -> int: ...

    @property
    def apart(self) -> bool: ...

    def each(
        self, work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
    ) -> Iterator[Result]:
        """See `each`."""
        ...


class _Here:
    """This process, one unit after another."""

    count, apart = 1, False

    def each(
        self, work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
    ) -> Iterator[Result]:
        """See the function `each`."""
        for done, unit in enumerate(units):
            progress(work.stage, done, len(units))
            yield work.task(unit, progress)
        progress(work.stage, len(units), len(units))


HERE = _Here()
_workers: ContextVar[Workers] = ContextVar("workers", default=HERE)


def workers() -> Workers:
    """Who does the units now."""
    return _workers.get()


@contextmanager
def worked_by(others: Workers) -> Iterator[None]:
    """Inside, units of this thread are done by others."""
    token = _workers.set(others)
    try:
        yield
    finally:
        _workers.reset(token)


def each(work: Work[Unit, Result], units: Sequence[Unit], progress: Progress) -> Iterator[Result]:
    """The results of all units, in their order, whoever does them.

    progress is called with the number of units done, and what it raises stops the work. What a task
    raises is raised here.
    """
    return workers().each(work, units, progress)
