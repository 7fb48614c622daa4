"""JSON without NaN and infinity, which Python writes and other programs cannot read."""

import json
import math
from collections.abc import Mapping
from typing import Any

from .errors import InputError


def json_text(values: Any, nulls: bool = False, **how: Any) -> str:
    """Return values as JSON; how: arguments of `json.dumps`.

    nulls: write numbers that are not finite as null. Raises InputError with the position of such a
    number if `nulls` is False.
    """
    try:
        return json.dumps(values, allow_nan=False, **how)
    except ValueError:
        position = _find_not_finite(values)
        if position is None:
            raise
        if not nulls:
            raise InputError(
                f"{position or 'The value'} is NaN or infinite, which JSON cannot represent. "
                "Nothing was written. Use dtype float32, a lower ratio, or another input file."
            ) from None
    return json.dumps(finite(values), allow_nan=False, **how)


def finite_values(text: str) -> Any:
    """Parse JSON. Raises ValueError for other text, NaN, infinity, and numbers such as 1e999."""
    return json.loads(text, parse_constant=_number, parse_float=_number)


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


def finite(values: Any) -> Any:
    """Return the values with None for numbers that are not finite."""
    if isinstance(values, Mapping):
        return {key: finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return None if _is_not_finite(values) else values


def _find_not_finite(values: Any, name: str = "") -> str | None:
    """Return the position of the first number that is not finite, such as "loss.3", or None."""
    if isinstance(values, Mapping | list | tuple):
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        positions = (
            _find_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in pairs
        )
        return next((position for position in positions if position is not None), None)
    return name if _is_not_finite(values) else None


def _is_not_finite(value: Any) -> bool:
    number = value.item() if hasattr(value, "item") else value  # of numpy and torch
    return isinstance(number, float) and not math.isfinite(number)
