"""Heavy objects shared by every browser: models, analyses, factorisations.

The least recently used leave first.
"""

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Any

# A dense model and its factors are the largest things in memory; a few of each serve several people
# without filling a laptop.
ROOM = {
    "dense": 2,
    "calibration": 3,
    "analysis": 4,
    "factors": 24,
    "small": 6,
    "live": 1,
    "live dense": 16,
    "lines": 200,
}


class Shelf:
    """At most ROOM[kind] objects of each kind.

    Two callers asking for the same missing object make it once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, OrderedDict[Hashable, Any]] = defaultdict(OrderedDict)
        self._making: dict[tuple[str, Hashable], threading.Lock] = defaultdict(threading.Lock)

    def peek(self, kind: str, key: Hashable) -> Any | None:
        """The object if it is here; never makes one."""
        with self._lock:
            found = self._kept[kind].get(key)
            if found is not None:
                self._kept[kind].move_to_end(key)
            return found

    def get(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            making = self._making[kind, key]
        with making:
            found = self.peek(kind, key)
            found = found if found is not None else self.put(kind, key, make())
        with self._lock:
            self._making.pop(
                (kind, key), None
            )  # who waits still has it; who comes later finds the object
        return found

    def put(self, kind: str, key: Hashable, value: Any) -> Any:
        with self._lock:
            self._kept[kind][key] = value
            self._kept[kind].move_to_end(key)
            while len(self._kept[kind]) > ROOM[kind]:
                self._kept[kind].popitem(last=False)
        return value

    def drop(self, kind: str, key: Hashable) -> None:
        with self._lock:
            self._kept[kind].pop(key, None)
