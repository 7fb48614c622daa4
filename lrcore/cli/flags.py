"""Options of the command line from the fields of dataclasses: `@flags`.

A parameter of a command that is annotated with a dataclass becomes one option per field, by the
`setting` metadata of the field; the command is handed the value made of them. So a default and what
a setting means stand once, beside the field.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from ..recipe import Recipe
from .recipe import read_recipe

RECIPE_FILE = "recipe_file"  # the parameter of --recipe


@dataclass(frozen=True)
class _Group:
    """The options that together make one argument of a command."""

    parameters: tuple[inspect.Parameter, ...]
    read: Callable[[dict[str, Any]], Any]


def flags(**chosen: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator of a command: its dataclass parameters become options.

    chosen: for a parameter, the fields or groups of fields that the command has; without, all. A
    `Recipe` with its model is read from --recipe too, whose fields the options override.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        groups = {
            name: _group(parameter.annotation, frozenset(chosen.get(name, ())))
            for name, parameter in signature.parameters.items()
            if is_dataclass(parameter.annotation)
        }

        @wraps(command)
        def run(**values: Any) -> None:
            made = {}
            for name, group in groups.items():
                made[name] = group.read({p.name: values.pop(p.name) for p in group.parameters})
            command(**values, **made)

        shown: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            own = groups[name].parameters if name in groups else (parameter,)
            shown += (one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)
        run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in shown}
        return run

    return decorate


def _group(kind: Any, chosen: frozenset[str]) -> _Group:
    own = [f for f in fields(kind) if "setting" in f.metadata]
    if chosen:
        own = [f for f in own if {f.name, f.metadata["setting"].group} & chosen]
    if kind is Recipe:
        return _recipe_group(own)
    return _Group(tuple(map(_parameter, own)), lambda values: kind(**values))


def _recipe_group(own: list[Field]) -> _Group:
    """Options that are None where they are not given, so that those of the file stand."""
    shown = [_parameter(f, given=False) for f in own]
    if any(f.name == "model" for f in own):
        file = typer.Option(
            "--recipe", metavar="FILE", help="Recipe (.json, .yaml); the flags given override it."
        )
        shown.insert(1, _made(RECIPE_FILE, Annotated[Path | None, file], None))

    def read(values: dict[str, Any]) -> Recipe:
        return read_recipe(values, values.pop(RECIPE_FILE, None), "model" in values)

    return _Group(tuple(shown), read)


def _parameter(field: Field, given: bool = True) -> inspect.Parameter:
    """The option of a field. given: it has the field's default; else None, and the help says it."""
    kind: Any = field.type
    one, default = field.metadata["setting"], field.default
    about, names = one.help, [f"--{one.flag or field.name.replace('_', '-')}"]
    if get_origin(kind) is Mapping or kind is Mapping:
        kind, default = list[str] | None, None
    elif not given:
        if not isinstance(default, bool) and default is not None and field.name != "model":
            about = f"{about} Default: {default}."
        kind, default = kind | None, None
    if field.name == "model":
        info = typer.Argument(metavar="MODEL", help=about, show_default=False)
        return _made(field.name, Annotated[kind, info], default)
    hidden = default is None or isinstance(default, bool)
    info = typer.Option(
        *names,
        metavar=one.metavar,
        help=about,
        show_default=not hidden,
        autocompletion=_completion(one.choices),
    )
    return _made(field.name, Annotated[kind, info], default)


def _completion(choices: Sequence[str]) -> Callable[[str], list[str]] | None:
    """What a shell completes a value to; None where everything may stand."""
    if not choices:
        return None
    return lambda incomplete: [one for one in choices if one.startswith(incomplete)]


def _made(name: str, kind: Any, default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=kind,
        default=empty if default is MISSING else default,
    )
