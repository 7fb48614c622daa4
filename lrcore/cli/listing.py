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
from ..errors import Shortage, as_name, unknown
from ..files import cache_folder, cache_key

PACKAGE = Path(__file__).resolve().parents[1]


def described() -> Any:
    """Methods and policies with all that `lrcore.methods` and `lrcore.policies` say of them."""
    return kept("described", _described, _listed)


def summaries() -> Any:
    """Methods and policies, two lists, without what `lrcore.policies` adds, which takes
    transformers.
    """
    return kept("methods", _summaries, _listed)


def check_names(method: str, policy: str) -> None:
    """Raises InputError with the nearest name for an unknown method or policy."""
    for kind, name, rows in zip(("method", "policy"), (method, policy), summaries(), strict=True):
        if name not in (names := [row["name"] for row in rows]):
            raise unknown(kind, as_name(name), names)


def _described() -> dict[str, Any]:
    import lrcore

    return {"methods": lrcore.methods(), "policies": lrcore.policies()}


def _summaries() -> list[Any]:
    import lrcore

    return [lrcore.methods(), [policy.describe() for policy in lrcore.POLICIES.values()]]


def _listed(known: Any) -> Any:
    """The same. Raises TypeError or LookupError for neither `_described` nor `_summaries`."""
    first, second = known.values() if isinstance(known, dict) else known
    for row in [*first, *second]:
        row["name"], row["options"]
    return known


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
