"""Options of a method or policy: one frozen dataclass each, read from plain values.

A field made with `option(...)` is an option that a user may name; its metadata say what it is. A
field without is none, and is set by the code that makes the value.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar, cast

from .errors import InputError, unknown

Value = bool | int | float | str
Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Option:
    """One setting.

    The kind of `default` is the kind of value: a switch, a whole number, a number, or a word among
    `choices`.

    low, high: the closed range of a number; None leaves that side open.
    """

    name: str
    default: Value
    about: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    def describe(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}

    def read(self, value: Any) -> Value:
        """The value in its kind, from a value or from a word of the command line.

        Raises InputError for one that is none.
        """
        if isinstance(self.default, bool):
            return self._switch(value)
        if isinstance(self.default, str):
            if value not in self.choices:
                raise unknown(f"value for option {self.name}", str(value), self.choices)
            return str(value)
        return self._number(value)

    def _switch(self, value: Any) -> bool:
        words = {
            "true": True,
            "on": True,
            "yes": True,
            "1": True,
            "false": False,
            "off": False,
            "no": False,
            "0": False,
        }
        if str(value).lower() not in words:
            raise InputError(f"Option {self.name} is on or off; got {value!r}.")
        return words[str(value).lower()]

    def _number(self, value: Any) -> int | float:
        kind, word = (
            (int, "a whole number") if isinstance(self.default, int) else (float, "a number")
        )
        try:
            number = kind(value)
        except (TypeError, ValueError):
            raise InputError(f"Option {self.name} is {word}; got {value!r}.") from None
        low, high = self.low, self.high
        if (
            (low is not None and number < low)
            or (high is not None and number > high)
            or number != float(value)
        ):
            sides = [
                f"at {word} {side:g}"
                for word, side in (("least", low), ("most", high))
                if side is not None
            ]
            raise InputError(f"Option {self.name} is {', '.join([word, *sides])}; got {value!r}.")
        return number


def option(
    default: Value,
    about: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A dataclass field that is an option, see `Option`."""
    own = {"about": about, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata=own)


@dataclass(frozen=True)
class NoOptions:
    """The options of a method or policy that has none."""


NO_OPTIONS = NoOptions()


def options_of(kind: type) -> tuple[Option, ...]:
    """What there is to choose in an options dataclass."""
    chosen = [f for f in fields(kind) if f.metadata]
    return tuple(Option(f.name, cast(Value, f.default), **f.metadata) for f in chosen)


def read_options(owner: str, kind: type[Chosen], given: Mapping[str, Any]) -> Chosen:
    """A value of an options dataclass: what was given, else the defaults.

    Raises InputError for an unknown name or a value out of range.
    """
    by_name = {option.name: option for option in options_of(kind)}
    for name in given:
        if name not in by_name:
            if not by_name:
                raise InputError(f"{owner} has no options; got '{name}'.")
            raise unknown(f"option of {owner}", str(name), by_name)
    return kind(**{name: by_name[name].read(value) for name, value in given.items()})
