"""Options of a method or policy: one frozen dataclass each, read from plain values.

A field made with `option(...)` is an option that a user may set; its metadata describe it. Any
other field is set by the code that makes the value.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

from .errors import InputError, as_name, shown, unknown

ON, OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
Value = bool | int | float | str
Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Option:
    """One setting: a switch, a whole number, a number, or one of `choices`, by the type of
    `default`.

    low, high: the closed range of a number; None leaves that side open.
    """

    name: str
    default: Value
    about: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    def describe(self) -> dict[str, Any]:
        """The option as plain values, for `methods --json` and the page."""
        return {name: value for name, value in vars(self).items() if value not in (None, ())}

    def read(self, value: Any) -> Value:
        """The value in its type, from a value or from a string of the command line.

        Raises InputError for a value of another type, out of range, or not among the choices.
        """
        if isinstance(self.default, bool):
            return self._switch(value)
        if isinstance(self.default, str):
            if value not in self.choices:
                raise unknown(f"value for option {self.name}", as_name(value), self.choices)
            return str(value)
        return self._number(value)

    def _switch(self, value: Any) -> bool:
        text = str(value).lower()
        if text not in ON + OFF:
            raise InputError(f"Option {self.name} is on or off; got {shown(value)}.")
        return text in ON

    def _number(self, value: Any) -> int | float:
        whole = isinstance(self.default, int)
        kind, noun = (int, "a whole number") if whole else (float, "a number")
        try:
            number, same = kind(value), float(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"Option {self.name} is {noun}; got {shown(value)}.") from None
        low, high = self.low, self.high
        below, above = low is not None and number < low, high is not None and number > high
        if below or above or number != same or abs(same) == math.inf:
            limits = (("at least", low), ("at most", high))
            sides = [f"{side} {limit:g}" for side, limit in limits if limit is not None]
            raise InputError(
                f"Option {self.name} is {', '.join([noun, *sides])}; got {shown(value)}."
            )
        return number


def option(
    default: Value,
    about: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A field of an options dataclass, see `Option`."""
    own = {"about": about, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata=own)


@dataclass(frozen=True)
class NoOptions:
    """The options of a method or policy that has none."""


NO_OPTIONS = NoOptions()


def options_of(kind: type) -> tuple[Option, ...]:
    """The options of an options dataclass."""
    chosen = [f for f in fields(kind) if f.metadata]
    return tuple(Option(f.name, cast(Value, f.default), **f.metadata) for f in chosen)


def read_options(owner: str, kind: type[Chosen], given: Mapping[str, Any]) -> Chosen:
    """A value of an options dataclass from plain values by name; the rest keep their defaults.

    Raises InputError for an unknown name or a value out of range.
    """
    return kind(**read_values(owner, options_of(kind), given))


def read_values(
    owner: str, options: Iterable[Option], given: Mapping[str, Any]
) -> dict[str, Value]:
    """The values given for options, by name, each in its type. owner: what has these options, such
    as "method a3".

    Raises InputError for an unknown name or a value out of range.
    """
    by_name = {option.name: option for option in options}
    for name in given:
        if name not in by_name:
            if not by_name:
                raise InputError(f"{owner} has no options; got '{name}'.")
            raise unknown(f"option of {owner}", str(name), by_name)
    return {name: by_name[name].read(value) for name, value in given.items()}
