"""The workers of a cluster behind the seam of the core, `units.Workers`.

Ray starts the processes, carries what is sent, and does a unit again where its worker died. Here is
only what Ray leaves open: which unit a worker gets next, the order of the results, progress, and
that nobody works on once the work was stopped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..progress import Progress, silent
from ..units import Result, Unit, Work
from .pickling import pack, unpack
from .queue import Queue

PATIENCE = 0.5  # seconds after which progress is called again, which may raise to stop the work


class Engine(Protocol):
    """What the pool asks of Ray.

    share(payload): a handle of bytes that all workers can read. send(worker, handle, unit): begin a
    unit, and return a future. answered(futures, seconds): one whose unit is done, None where none
    is after so many seconds. take(future): what the worker returned. Raises InputError where the
    worker died, and so did those that were started in its place. stop(): end all that is under way.
    """

    @property
    def count(self) -> int: ...

    def share(self, payload: bytes) -> Any: ...

    def send(self, worker: int, handle: Any, unit: bytes) -> Any: ...

    def answered(self, futures: Sequence[Any], seconds: float) -> Any | None: ...

    def take(self, future: Any) -> bytes: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Pool:
    """The workers of an engine, as `units.each` knows them."""

    engine: Engine
    apart = True

    @property
    def count(self) -> int:
        return self.engine.count

    def each(
        self, work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
    ) -> Iterator[Result]:
        """See `units.each`."""
        engine, queue = self.engine, Queue(units, work.together)
        handle = engine.share(pack(work.task))
        busy: dict[Any, tuple[int, int]] = {}  # worker and unit, by future
        results: dict[int, Result] = {}
        idle, done = list(reversed(range(engine.count))), 0
        try:
            for wanted in range(len(units)):
                while wanted not in results:
                    progress(work.stage, done, len(units))
                    while idle and (number := queue.next(idle[-1])) is not None:
                        worker = idle.pop()
                        future = engine.send(worker, handle, pack(units[number]))
                        busy[future] = worker, number
                    future = engine.answered(list(busy), PATIENCE)
                    if future is not None:
                        worker, number = busy.pop(future)
                        idle.append(worker)
                        results[number] = _opened(engine.take(future))
                        done += 1
                yield results.pop(wanted)
        finally:
            if busy:
                engine.stop()
        progress(work.stage, len(units), len(units))


@dataclass(frozen=True)
class _Answer:
    """What became of a unit: its result, or what its task raised."""

    result: Any = None
    error: BaseException | None = None


def _opened(payload: bytes) -> Any:
    answer = unpack(payload)
    if answer.error is not None:
        raise answer.error
    return answer.result


class Worker:
    """The side of a worker: a process that does one unit after another.

    The task is unpacked once, so what it keeps for itself it has for all its units.
    """

    def __init__(self) -> None:
        self._payload = b""
        self._task: Callable[[Any, Progress], Any] | None = None

    def run(self, payload: bytes, unit: bytes) -> bytes:
        """Do the packed unit with the packed task; returns the packed answer."""
        try:
            return pack(_Answer(self._unpacked(payload)(unpack(unit), silent)))
        except Exception as error:
            return pack(_Answer(error=_sendable(error)))

    def _unpacked(self, payload: bytes) -> Callable[[Any, Progress], Any]:
        if self._task is None or payload != self._payload:
            self._task = None  # before the next one takes memory
            self._payload, self._task = payload, unpack(payload)
        return self._task


def _sendable(error: Exception) -> Exception:
    """The exception itself, or one with its words where another process could not make it."""
    try:
        unpack(pack(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
