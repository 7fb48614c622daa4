"""Settings as dataclass fields with a help text, choices and a range.

The command line, the page and the checks read the same metadata. Fields of recipes and commands
are made with `setting` and checked by `check_settings`. Fields of the options of a method or policy
are made with `option`, and `read_options` reads their values from plain values.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, cast, get_origin

from .errors import InputError, as_name, shown, unknown

# When windows begin with the beginning-of-text token; auto: if the tokenizer adds it to texts.
BOS = ("never", "auto", "always")
ON, OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
DATA_HINT = (
    " In Python it may be a list of texts or a datasets.Dataset; lrcore.write_texts(texts, "
    "'texts.jsonl') writes other texts to a file."
)
# Names of the checked types in messages.
TYPE_NAMES: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    Mapping: "a mapping of names to values",
    int: "a whole number",
    float: "a number",
}
Choices = Sequence[str] | Mapping[str, str]
Value = bool | int | float | str
Options = TypeVar("Options")


@dataclass(frozen=True)
class Setting:
    """Description of a field.

    about: help text of one or two sentences; `{choices}` in it stands for all choices. low, high:
    closed range of a number; None for no limit. group: commands include fields by group. flag: name
    on the command line if it differs from the name of the field. metavar: form of a value in the
    help.
    """

    about: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    group: str = ""
    flag: str = ""
    metavar: str | None = None

    @property
    def help(self) -> str:
        """`about` with the choices: "a, b or c"."""
        *first, last = self.choices or ("",)
        return self.about.replace("{choices}", f"{', '.join(first)} or {last}" if first else last)


@dataclass(frozen=True)
class Option:
    """An option of a method or policy. The type of `default` determines the type: a switch, an
    integer, a number, or an element of `choices`.

    low, high: closed range of a number; None for no limit.
    """

    name: str
    default: Value
    about: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    def describe(self) -> dict[str, Any]:
        """Return plain values for `methods --json` and the page."""
        return {name: value for name, value in vars(self).items() if value not in (None, ())}

    def read(self, value: Any) -> Value:
        """Return a value, or a string of the command line, in the type of the option.

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
        is_whole = isinstance(self.default, int)
        kind, noun = (int, "a whole number") if is_whole else (float, "a number")
        try:
            number, exact = kind(value), float(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"Option {self.name} is {noun}; got {shown(value)}.") from None
        is_low = self.low is not None and number < self.low
        is_high = self.high is not None and number > self.high
        if is_low or is_high or number != exact or abs(exact) == math.inf:
            limits = (("at least", self.low), ("at most", self.high))
            sides = [f"{side} {limit:g}" for side, limit in limits if limit is not None]
            raise InputError(
                f"Option {self.name} is {', '.join([noun, *sides])}; got {shown(value)}."
            )
        return number


@dataclass(frozen=True)
class NoOptions:
    """The options of a method or policy without options."""


NO_OPTIONS = NoOptions()


def setting(
    default: Any,
    about: str,
    choices: Choices = (),
    low: int | None = None,
    **details: str,
) -> Any:
    """Return a dataclass field with a `Setting`; details: group, flag and metavar.

    A default of dict means an empty mapping, `dataclasses.MISSING` a required field.
    """
    metadata = {"setting": Setting(about, tuple(choices), low, **details)}  # type: ignore[arg-type]
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def option(
    default: Value,
    about: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a field of a dataclass of options, see `Option`.

    Users set only fields made with `option`. A dataclass of options can have further fields, which
    are set by the code that creates the value.
    """
    return field(default=default, metadata={"setting": Setting(about, choices, low, high)})


def settings_of(kind: Any) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by field name, in their order."""
    return _settings_of(kind)


@cache
def _settings_of(kind: type) -> Mapping[str, Setting]:
    return {f.name: f.metadata["setting"] for f in fields(kind) if "setting" in f.metadata}


def options_of(kind: type) -> tuple[Option, ...]:
    """Return the options of a dataclass of options."""
    described = settings_of(kind)
    return tuple(
        Option(
            f.name,
            cast(Value, f.default),
            entry.about,
            entry.choices,
            entry.low,
            entry.high,
        )
        for f in fields(kind)
        if (entry := described.get(f.name)) is not None
    )


def read_options(owner: str, kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Return a dataclass of options made of plain values by name, and defaults for missing names.

    Raises InputError for an unknown name or a value out of range.
    """
    return kind(**read_values(owner, options_of(kind), values))


def read_values(
    owner: str, options: Iterable[Option], values: Mapping[str, Any]
) -> dict[str, Value]:
    """Return values by name in the types of their options.

    owner: such as "method a3", for messages. Raises InputError for an unknown name or a value out
    of range.
    """
    by_name = {option.name: option for option in options}
    for name in values:
        if name not in by_name:
            if not by_name:
                raise InputError(f"{owner} has no options; got '{name}'.")
            raise unknown(f"option of {owner}", str(name), by_name)
    return {name: by_name[name].read(value) for name, value in values.items()}


def check_least(name: str, value: Any, low: float) -> None:
    """Raise InputError unless the value is a whole number of at least `low`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} must be a whole number of at least {low}, got {shown(value)}.")


def check_settings(settings: Any) -> None:
    """Check choices, lower limits and types of the fields of a dataclass.

    A None that is the default of the field passes. Raises InputError for the first wrong value.
    """
    described = settings_of(type(settings))
    for name, entry in described.items():
        value = getattr(settings, name)
        if entry.choices and value not in entry.choices and not _is_omitted(settings, name):
            raise unknown(name, as_name(value), entry.choices)
    for name, entry in described.items():
        if entry.low is not None and not _is_omitted(settings, name):
            check_least(name, getattr(settings, name), entry.low)
    for name, kind, is_optional in _checked_types(settings.__class__):
        value = getattr(settings, name)
        if not _has_type(value, kind) and not (is_optional and value is None):
            hint = DATA_HINT if name == "data" else ""
            raise InputError(f"{name} must be {TYPE_NAMES[kind]}, got {shown(value)}.{hint}")


def _is_omitted(settings: Any, name: str) -> bool:
    """Return whether the value of a field is None and None is the field's default."""
    return getattr(settings, name) is None and getattr(type(settings), name, MISSING) is None


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value has a type. A bool is not a number; an int larger than any float is
    not a number.
    """
    if kind not in (int, float):
        return isinstance(value, kind)
    if not isinstance(value, int if kind is int else int | float) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


@cache
def _checked_types(of: type) -> tuple[tuple[str, Any, bool], ...]:
    """Return (name, type, whether None is a valid value) of the fields with a type in TYPE_NAMES.

    The result is cached because the lookup of types takes longer than reading a recipe.
    """
    return tuple(
        (f.name, kind, f.type == kind | None)
        for f in fields(of)
        for kind in TYPE_NAMES
        if kind in (f.type, get_origin(f.type)) or f.type == kind | None
    )
