"""Listings that the commands print, kept in the cache: making them takes torch, which is seconds,
and they change with the code alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..as_json import json_text
from ..cache import keep_value, read_as
from ..errors import Shortage, as_name, unknown
from ..files import cache_folder, cache_key
from ..options import Option, read_values
from ..recipe import Recipe

PACKAGE = Path(__file__).resolve().parents[1]


def described() -> Any:
    """Methods and policies with all that `lrcore.methods` and `lrcore.policies` say of them."""
    return kept("described", _described, _listed)


def summaries() -> Any:
    """Methods and policies, two lists, without what `lrcore.policies` adds, which takes
    transformers.
    """
    return kept("methods", _summaries, _listed)


def check_choices(recipe: Recipe) -> None:
    """Raises InputError, with the nearest name, for an unknown method, policy or option of theirs,
    and for a value that an option cannot have; without torch, whose import takes seconds.
    """
    methods, policies = summaries()
    _check("method", methods, recipe.method, recipe.options)
    _check("policy", policies, recipe.policy, recipe.policy_options)


def _check(kind: str, rows: Sequence[Any], name: str, given: Mapping[str, Any]) -> None:
    """rows: of the methods or policies, as they describe themselves."""
    by_name = {row["name"]: row for row in rows}
    if name not in by_name:
        raise unknown(kind, as_name(name), by_name)
    read_values(f"{kind} {name}", (Option(**one) for one in by_name[name]["options"]), given)


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
