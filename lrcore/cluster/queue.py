"""Which unit a free worker does next."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any


class Queue:
    """The units that nobody has begun, by their number; those of one key in a row of their own."""

    def __init__(self, units: Sequence[Any], key: Callable[[Any], Hashable]) -> None:
        self._waiting: dict[Hashable, deque[int]] = {}
        for number, unit in enumerate(units):
            self._waiting.setdefault(key(unit), deque()).append(number)
        self._at: dict[int, Hashable] = {}  # the key that a worker is at

    def next(self, worker: int) -> int | None:
        """The number of the next unit for a worker; None where all are begun.

        A worker stays with its key; then it takes one that no other is at, then the one that has
        most left.
        """
        left = {key: own for key, own in self._waiting.items() if own}
        if not left:
            return None
        key = self._at.get(worker)
        if worker not in self._at or key not in left:
            others = {at for other, at in self._at.items() if other != worker}
            free = [key for key in left if key not in others]
            key = free[0] if free else max(left, key=lambda one: len(left[one]))
        self._at[worker] = key
        return left[key].popleft()
