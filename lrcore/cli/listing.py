"""Cached lists of methods and policies.

Making them imports torch, which takes seconds. They depend only on the source code.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..recipes.recipe import Recipe
from ..system.as_json import json_text
from ..system.cache import keep_value, read_as
from ..system.errors import ResourceError, as_name, unknown
from ..system.files import cache_folder, cache_key
from ..system.settings import Option, read_values

PACKAGE = Path(__file__).resolve().parents[1]


def described() -> Any:
    """Return the complete descriptions of all methods and policies."""
    return cached("described", _described, _checked)


def summaries() -> Any:
    """Return lists of methods and policies, without the fields that `lrcore.list_policies` computes
    with transformers.
    """
    return cached("methods", _summaries, _checked)


def check_choices(recipe: Recipe) -> None:
    """Check method, policy and their options without importing torch.

    Raises InputError for an unknown name, with the nearest valid name, and for an invalid value.
    """
    methods, policies = summaries()
    _check("method", methods, recipe.method, recipe.options)
    _check("policy", policies, recipe.policy, recipe.policy_options)


def has_temperature(policy: str) -> bool:
    """Return whether a policy reads the recipe's temperature, without importing torch."""
    _, policies = summaries()
    return any(row["temperature"] for row in policies if row["name"] == policy)


def _check(kind: str, rows: Sequence[Any], name: str, options: Mapping[str, Any]) -> None:
    """rows: descriptions of the methods or policies."""
    by_name = {row["name"]: row for row in rows}
    if name not in by_name:
        raise unknown(kind, as_name(name), by_name)
    read_values(
        f"{kind} {name}", (Option(**option) for option in by_name[name]["options"]), options
    )


def _described() -> dict[str, Any]:
    import lrcore

    return {"methods": lrcore.list_methods(), "policies": lrcore.list_policies()}


def _summaries() -> list[Any]:
    import lrcore

    from ..ranks.policies import POLICIES

    return [lrcore.list_methods(), [policy.describe() for policy in POLICIES.values()]]


def _checked(value: Any) -> Any:
    """Return a value of `_described` or `_summaries`. Raises TypeError or LookupError for others.

    The cache may hold a damaged file.
    """
    methods, policies = value.values() if isinstance(value, dict) else value
    for row in [*methods, *policies]:
        row["name"], row["options"]
    return value


def cached(name: str, make: Callable[[], Any], read: Callable[[Any], Any] = list) -> Any:
    """Return the JSON-able value of `make`, cached for the current source code.

    read: returns a cached value, and raises TypeError or LookupError for an invalid one.
    """
    file = cache_folder() / "listings" / f"{name}-{_state()}.json"
    value = read_as(file, read)
    if value is None:
        value = json.loads(json_text(make()))
        with suppress(ResourceError):  # the cache is not writable
            keep_value(file, value)
    return value


def _state() -> str:
    """Return a key of sizes and times of all source files."""
    sources = sorted(PACKAGE.rglob("*.py"))
    states = [(str(path.relative_to(PACKAGE)), path.stat()) for path in sources]
    return cache_key(*((name, state.st_size, state.st_mtime_ns) for name, state in states))
