"""Values as JSON, which has no NaN and no infinity: Python would write them, and others cannot read
them.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from .errors import InputError


def json_text(values: Any, nulls: bool = False, **how: Any) -> str:
    """JSON of values; how: as `json.dumps` takes it. nulls: a number that is not finite becomes
    null, as figures that could not be measured do.

    Raises InputError, which says where it is, for another number that is not finite.
    """
    try:
        return json.dumps(values, allow_nan=False, **how)
    except ValueError:
        place = _place(values)
        if place is None:
            raise
        if not nulls:
            raise InputError(
                f"{place or 'The value'} is NaN or infinite, which JSON cannot hold: nothing is "
                "written. Compute it in dtype float32, or remove less; of a file, take another one."
            ) from None
    return json.dumps(finite(values), allow_nan=False, **how)


def finite_values(text: str) -> Any:
    """The value of JSON as `json_text` writes it. Raises ValueError for other text, and for NaN and
    infinity, which Python would read, also from 1e999.
    """
    return json.loads(text, parse_constant=_number, parse_float=_number)


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


def finite(values: Any) -> Any:
    """The same values with None in the place of numbers that are not finite."""
    if isinstance(values, Mapping):
        return {key: finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return None if _is_wild(values) else values


def _place(values: Any, name: str = "") -> str | None:
    """Where the first number is that is not finite, such as "loss.3"; None where there is none."""
    if isinstance(values, Mapping | list | tuple):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        inside = (_place(value, f"{name}.{key}" if name else str(key)) for key, value in pairs)
        return next((place for place in inside if place is not None), None)
    return name if _is_wild(values) else None


def _is_wild(value: Any) -> bool:
    number = value.item() if hasattr(value, "item") else value  # of numpy and torch
    return isinstance(number, float) and not math.isfinite(number)
