"""Units of work, which this process or the workers of a cluster compute.

Units are calibration windows, layers, probes and cells of a sweep. This process computes them one
after another, unless `worked_by` has set other workers (see lrcore/runs/cluster/).
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
    """A task for all units.

    stage: name for progress. task(unit, progress): returns the result of a unit; it can be pickled
    with its data, and repeated after the death of a worker. together(unit): key; units with the
    same key share intermediate results and are computed by the same worker.
    """

    stage: str
    task: Callable[[Unit, Progress], Result]
    together: Callable[[Unit], Hashable] = _alike


class Workers(Protocol):
    """Interface of workers.

    count: number of units at a time. apart: whether the workers are other processes, which exchange
    large values by files in the cache folder.
    """

    @property
    def count(self) -> int: ...

    @property
    def apart(self) -> bool: ...

    def map_units(
        self, work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
    ) -> Iterator[Result]:
        """See the function `map_units`."""
        ...


class _Here:
    """Computes the units in this process, one after another."""

    count, apart = 1, False

    def map_units(
        self, work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
    ) -> Iterator[Result]:
        """See the function `map_units`."""
        for done, unit in enumerate(units):
            progress(work.stage, done, len(units))
            yield work.task(unit, progress)
        progress(work.stage, len(units), len(units))


HERE = _Here()
_workers: ContextVar[Workers] = ContextVar("workers", default=HERE)


def workers() -> Workers:
    """Return the current workers."""
    return _workers.get()


@contextmanager
def worked_by(workers: Workers) -> Iterator[None]:
    """Use other workers for the units of this thread in this block."""
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)


def map_units(
    work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
) -> Iterator[Result]:
    """Yield the results of all units, in their order.

    progress is called with the number of finished units; an exception stops the work. Exceptions
    of a task are raised here.
    """
    return workers().map_units(work, units, progress)
