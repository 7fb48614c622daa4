"""Listings that the commands print, kept in the cache: making them takes torch, which is seconds,
and they change with the code alone.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..as_json import json_text
from ..cache import keep_value, read_as
from ..errors import Shortage
from ..files import cache_folder, cache_key

PACKAGE = Path(__file__).resolve().parents[1]


def kept(name: str, make: Callable[[], Any], read: Callable[[Any], Any] = list) -> Any:
    """The JSON-able value that `make` gives, made once for this state of the code. read: gives it
    back, and raises TypeError or LookupError for another one.
    """
    file = cache_folder() / "listings" / f"{name}-{_state()}.json"
    known = read_as(file, read)
    if known is None:
        known = json.loads(json_text(make()))
        with suppress(Shortage):  # a cache that cannot be written
            keep_value(file, known)
    return known


def _state() -> str:
    """Sizes and times of all sources of the package, as a key."""
    sources = sorted(PACKAGE.rglob("*.py"))
    states = [(str(one.relative_to(PACKAGE)), one.stat()) for one in sources]
    return cache_key(*((name, known.st_size, known.st_mtime_ns) for name, known in states))
