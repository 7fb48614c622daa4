"""`setting`: a dataclass field with its help text, choices and range.

The command line and the checks read the same metadata.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, get_origin

from .errors import InputError, as_name, shown, unknown

IN_MEMORY = (
    " In Python it may be a list of texts or a datasets.Dataset; lrcore.write_texts(texts, "
    "'texts.jsonl') makes a file of what else holds texts."
)
# What a file may hold in the place of what a field is, by the type of the field.
KINDS: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    Mapping: "a mapping of names to values",
    int: "a whole number",
    float: "a number",
}
Choices = Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """What a field is, besides its type and its default.

    about: one or two sentences for a person; `{choices}` in it stands for all of them. low: the
    least whole number. group: fields that commands take together. flag: its name on the command
    line where that is not the field's; metavar: how a value is written there.
    """

    about: str
    choices: tuple[str, ...] = ()
    low: int | None = None
    group: str = ""
    flag: str = ""
    metavar: str | None = None

    @property
    def help(self) -> str:
        """`about` with its choices: "a, b or c"."""
        *first, last = self.choices or ("",)
        return self.about.replace("{choices}", f"{', '.join(first)} or {last}" if first else last)


def setting(
    default: Any,
    about: str,
    choices: Choices = (),
    low: int | None = None,
    **more: str,
) -> Any:
    """A dataclass field with a `Setting`; more: its group, flag and metavar.

    A default of dict means an empty mapping. Without a default of its own, give
    `dataclasses.MISSING`.
    """
    described = Setting(about, tuple(choices), low, **more)
    given = {"default_factory": dict} if default is dict else {"default": default}
    return field(**given, metadata={"setting": described})


def settings_of(kind: Any) -> Mapping[str, Setting]:
    """The fields of a dataclass that were made with `setting`, by name, in their order."""
    return _settings_of(kind)


@cache
def _settings_of(kind: type) -> Mapping[str, Setting]:
    return {f.name: f.metadata["setting"] for f in fields(kind) if "setting" in f.metadata}


def check_least(name: str, got: Any, low: int) -> None:
    """Raises InputError for what is no whole number of at least `low`."""
    if not isinstance(got, int) or isinstance(got, bool) or got < low:
        raise InputError(f"{name} must be a whole number of at least {low}, got {shown(got)}.")


def check_settings(value: Any) -> None:
    """Raises InputError for a field of a dataclass that is none of its choices, no whole number of
    at least `low`, or not of its type. A None that is the field's default passes.
    """
    for name, one in settings_of(type(value)).items():
        got = getattr(value, name)
        if one.choices and got not in one.choices and not _left_out(value, name):
            raise unknown(name, as_name(got), one.choices)
    for name, one in settings_of(type(value)).items():
        if one.low is not None and not _left_out(value, name):
            check_least(name, getattr(value, name), one.low)
    for name, kind, optional in _kinds_of(value.__class__):
        got = getattr(value, name)
        if not _is(got, kind) and not (optional and got is None):
            hint = IN_MEMORY if name == "data" else ""
            raise InputError(f"{name} must be {KINDS[kind]}, got {shown(got)}.{hint}")


def _left_out(value: Any, name: str) -> bool:
    """Whether a field is None, which is its default."""
    return getattr(value, name) is None and getattr(type(value), name, MISSING) is None


def _is(got: Any, kind: Any) -> bool:
    """Whether a value is of a type; a number is none of truth, and none beyond what floats hold."""
    if kind not in (int, float):
        return isinstance(got, kind)
    if not isinstance(got, int if kind is int else int | float) or isinstance(got, bool):
        return False
    return isinstance(got, float) or abs(got) <= sys.float_info.max


@cache
def _kinds_of(of: type) -> tuple[tuple[str, Any, bool], ...]:
    """(name, kind, whether it may be None) of the fields of a dataclass whose type is in KINDS.

    Kept: these types take longer to look up than a recipe to read.
    """
    return tuple(
        (f.name, kind, f.type == kind | None)
        for f in fields(of)
        for kind in KINDS
        if kind in (f.type, get_origin(f.type)) or f.type == kind | None
    )
