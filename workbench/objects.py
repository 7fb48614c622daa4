"""The object cache: models, analyses, factorisations and plans shared by every browser.

The least recently used are released first.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Any

# A dense model and its factors are the largest things in memory; a few of each serve several people
# without filling a laptop. A plan is small beside the factors it was made of.
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
}


class ObjectCache:
    """At most LIMITS[kind] objects of each kind.

    Two callers asking for the same missing object make it once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, OrderedDict[Hashable, Any]] = defaultdict(OrderedDict)
        self._making: dict[tuple[str, Hashable], threading.Lock] = defaultdict(threading.Lock)
        self.changes = 0  # how often an object came or went

    def peek(self, kind: str, key: Hashable) -> Any | None:
        """The object if it is here; never makes one."""
        with self._lock:
            value = self._kept[kind].get(key)
            if value is not None:
                self._kept[kind].move_to_end(key)
            return value

    def get(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        """The object, made where it is missing; what `make` raises passes through."""
        with self._lock:
            making = self._making[kind, key]
        with making:
            value = self.peek(kind, key)
            value = value if value is not None else self.put(kind, key, make())
        with self._lock:
            # who waits still has the lock; who comes later finds the object
            self._making.pop((kind, key), None)
        return value

    def put(self, kind: str, key: Hashable, value: Any) -> Any:
        """Keep an object and return it; the least recently used of its kind may go."""
        with self._lock:
            self.changes += 1
            self._kept[kind][key] = value
            self._kept[kind].move_to_end(key)
            while len(self._kept[kind]) > LIMITS[kind]:
                self._kept[kind].popitem(last=False)
        return value

    def drop(self, kind: str, key: Hashable) -> None:
        with self._lock:
            self.changes += 1
            self._kept[kind].pop(key, None)
