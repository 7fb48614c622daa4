"""The object cache: models, analyses, factors and plans, shared by all browsers."""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Any

# Dense models and factors are the largest objects: the limits serve several people without filling
# the memory of a laptop. A plan is small compared with the factors.
LIMITS = {
    "dense": 2,
    "calibration": 3,
    "analysis": 4,
    "factors": 24,
    "plan": 300,
    "refits": 200,
    "fits": 200,
    "small": 6,
    "live": 1,
    "live dense": 16,
    "live prompt": 64,
    "lines": 200,
    "curves": 200,
    "pace": 16,
    "text head": 64,
    "task scores": 16,
}


class ObjectCache:
    """At most LIMITS[kind] objects of each kind; the least recently used objects are dropped.

    An object that several callers request at the same time is made once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, OrderedDict[Hashable, Any]] = defaultdict(OrderedDict)
        self._creating: dict[tuple[str, Hashable], threading.Lock] = defaultdict(threading.Lock)
        self.changes = 0  # number of times that an object was added or removed

    def peek(self, kind: str, key: Hashable) -> Any | None:
        """Return an object, or None if it is not in the cache."""
        with self._lock:
            value = self._objects[kind].get(key)
            if value is not None:
                self._objects[kind].move_to_end(key)
            return value

    def get(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return an object, made by `make` if necessary. Exceptions of `make` pass through."""
        with self._lock:
            creating = self._creating[kind, key]
        with creating:
            value = self.peek(kind, key)
            value = value if value is not None else self.put(kind, key, make())
        with self._lock:
            # waiting callers hold a reference to the lock, later callers find the object
            self._creating.pop((kind, key), None)
        return value

    def put(self, kind: str, key: Hashable, value: Any) -> Any:
        """Add an object and return it. The least recently used object may be dropped."""
        with self._lock:
            self.changes += 1
            self._objects[kind][key] = value
            self._objects[kind].move_to_end(key)
            while len(self._objects[kind]) > LIMITS[kind]:
                self._objects[kind].popitem(last=False)
        return value

    def drop(self, kind: str, key: Hashable) -> None:
        with self._lock:
            self.changes += 1
            self._objects[kind].pop(key, None)
