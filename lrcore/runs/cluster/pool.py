"""The workers of a cluster as `units.Workers` of the core.

Ray starts the processes, transfers the data, and repeats a unit if its worker died. This module
decides which unit a worker gets next, orders the results, reports progress, and stops the workers
when the work is stopped.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...system.progress import Progress, silent
from ...system.units import Result, Unit, Work
from .pickling import pack, unpack

PATIENCE = 0.5  # seconds after which progress is called again, which may raise to stop the work


class Engine(Protocol):
    """The operations that the pool needs from Ray.

    share(payload): return a handle of bytes that all workers can read. send(worker, handle, unit):
    start a unit, and return a future. first_finished(futures, seconds): return a future whose unit
    is complete, or None after so many seconds. result(future): return the answer of the worker;
    raises InputError if the worker and its replacements died. stop(): end all running units.
    """

    @property
    def count(self) -> int: ...

    def share(self, payload: bytes) -> Any: ...

    def send(self, worker: int, handle: Any, unit: bytes) -> Any: ...

    def first_finished(self, futures: Sequence[Any], seconds: float) -> Any | None: ...

    def result(self, future: Any) -> bytes: ...

    def stop(self) -> None: ...


class Queue:
    """The units that no worker has started, by number, in a separate queue per key.

    key: `Work.together`; units with the same key share intermediate results in a worker.
    """

    def __init__(self, units: Sequence[Any], key: Callable[[Any], Hashable]) -> None:
        self._waiting: dict[Hashable, deque[int]] = {}
        for number, unit in enumerate(units):
            self._waiting.setdefault(key(unit), deque()).append(number)
        self._current_key: dict[int, Hashable] = {}  # by worker

    def next(self, worker: int) -> int | None:
        """Return the number of the next unit for a worker; None if all units have been started.

        A worker continues with its key. After that it takes a key that no worker processes, and if
        all are processed, the key with the most remaining units.
        """
        remaining = {key: numbers for key, numbers in self._waiting.items() if numbers}
        if not remaining:
            return None
        key = self._current_key.get(worker)
        if worker not in self._current_key or key not in remaining:
            busy = {key for index, key in self._current_key.items() if index != worker}
            free = [key for key in remaining if key not in busy]
            key = free[0] if free else max(remaining, key=lambda key: len(remaining[key]))
        self._current_key[worker] = key
        return remaining[key].popleft()


@dataclass(frozen=True)
class Pool:
    """The workers of an engine, as an implementation of `units.Workers`."""

    engine: Engine
    apart = True  # see `units.Workers`

    @property
    def count(self) -> int:
        return self.engine.count

    def map_units(
        self, work: Work[Unit, Result], units: Sequence[Unit], progress: Progress
    ) -> Iterator[Result]:
        """Yield the results in the order of the units, see `units.each`."""
        engine, queue = self.engine, Queue(units, work.together)
        handle = engine.share(pack(work.task))
        busy: dict[Any, tuple[int, int]] = {}  # worker and unit, by future
        results: dict[int, Result] = {}
        idle, done = list(reversed(range(engine.count))), 0
        try:
            for next_result in range(len(units)):
                while next_result not in results:
                    progress(work.stage, done, len(units))
                    while idle and (number := queue.next(idle[-1])) is not None:
                        worker = idle.pop()
                        future = engine.send(worker, handle, pack(units[number]))
                        busy[future] = worker, number
                    future = engine.first_finished(list(busy), PATIENCE)
                    if future is not None:
                        worker, number = busy.pop(future)
                        idle.append(worker)
                        results[number] = _opened(engine.result(future))
                        done += 1
                yield results.pop(next_result)
        finally:
            if busy:
                engine.stop()
        progress(work.stage, len(units), len(units))


@dataclass(frozen=True)
class _Answer:
    """The outcome of a unit: a result or an exception."""

    result: Any = None
    error: BaseException | None = None


def _opened(payload: bytes) -> Any:
    answer = unpack(payload)
    if answer.error is not None:
        raise answer.error
    return answer.result


class Worker:
    """The worker process, which runs units in sequence.

    The task is unpacked only once, so its cached values serve all units.
    """

    def __init__(self) -> None:
        self._payload = b""
        self._task: Callable[[Any, Progress], Any] | None = None

    def run(self, payload: bytes, unit: bytes) -> bytes:
        """Run the packed unit with the packed task and return the packed answer."""
        try:
            return pack(_Answer(self._unpacked(payload)(unpack(unit), silent)))
        except Exception as error:
            return pack(_Answer(error=_sendable(error)))

    def _unpacked(self, payload: bytes) -> Callable[[Any, Progress], Any]:
        if self._task is None or payload != self._payload:
            self._task = None  # free the memory before the next task is unpacked
            self._payload, self._task = payload, unpack(payload)
        return self._task


def _sendable(error: Exception) -> Exception:
    """Return the exception, or an exception with the same text if a different process could not
    recreate it.
    """
    try:
        unpack(pack(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
