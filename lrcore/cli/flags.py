"""Options of commands from the fields of dataclasses.

`flags` replaces a parameter of a command that is annotated with a dataclass by an option per field,
and passes the resulting value to the command. Defaults and help texts are those of the `setting` of
each field.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from ..models.hub import locate_local
from ..recipes.recipe import MAPPINGS, TEXT_FIELD, Recipe
from ..system.errors import InputError, quoted
from .listing import check_choices, has_temperature

RECIPE_FILE = "recipe_file"  # parameter of --recipe


@dataclass(frozen=True)
class _Group:
    """Options of an argument of a command, and the function that returns the value."""

    parameters: tuple[inspect.Parameter, ...]
    read: Callable[[dict[str, Any]], Any]


def flags(**chosen: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the dataclass parameters of a command by options.

    chosen: fields or groups of fields by parameter; all fields of other parameters. A `Recipe` with
    the field `model` has --recipe, a file whose values the options override.
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
            arguments = {}
            for name, group in groups.items():
                arguments[name] = group.read({p.name: values.pop(p.name) for p in group.parameters})
            command(**values, **arguments)

        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            options = groups[name].parameters if name in groups else (parameter,)
            parameters += (p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in options)
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _group(kind: Any, chosen: frozenset[str]) -> _Group:
    """Return the options of a dataclass. chosen: fields or groups of fields; empty for all."""
    described = [f for f in fields(kind) if "setting" in f.metadata]
    if chosen:
        described = [f for f in described if {f.name, f.metadata["setting"].group} & chosen]
    if kind is Recipe:
        group = _recipe_group(described)
    else:
        group = _Group(tuple(map(_parameter, described)), lambda values: kind(**values))
    return _with_text_field(group) if any(f.name == "data" for f in described) else group


def _with_text_field(group: _Group) -> _Group:
    """Return a group with --text-field, which adds a field to the name of the data set."""
    option = typer.Option(
        "--text-field",
        metavar="NAME",
        help="Field with the texts of a file or hub data set, as in --data FILE#NAME.",
        show_default=False,
    )
    parameter = _make_parameter(TEXT_FIELD, Annotated[str | None, option], None)
    names = [p.name for p in group.parameters]
    after = names.index("data") + 1

    def read(values: dict[str, Any]) -> Any:
        field = values.pop(TEXT_FIELD)
        settings = group.read(values)
        if field is None:
            return settings
        from ..data import with_text_field

        return replace(settings, data=with_text_field(settings.data, field))

    return _Group((*group.parameters[:after], parameter, *group.parameters[after:]), read)


def _recipe_group(described: list[Field]) -> _Group:
    """Return options with the default None, so that values of the file are not overridden."""
    parameters = [_parameter(f, has_default=False) for f in described]
    if any(f.name == "model" for f in described):
        file = typer.Option(
            "--recipe", metavar="FILE", help="Recipe (.json, .yaml); flags override the values."
        )
        parameters.insert(1, _make_parameter(RECIPE_FILE, Annotated[Path | None, file], None))

    def read(values: dict[str, Any]) -> Recipe:
        return read_recipe(values, values.pop(RECIPE_FILE, None), "model" in values)

    return _Group(tuple(parameters), read)


def _parameter(field: Field, has_default: bool = True) -> inspect.Parameter:
    """Return the option of a field. has_default: use the default of the field; otherwise the
    default is None and the help text names the field's.
    """
    kind: Any = field.type
    setting, default = field.metadata["setting"], field.default
    about, names = setting.help, [f"--{setting.flag or field.name.replace('_', '-')}"]
    if get_origin(kind) is Mapping or kind is Mapping:
        kind, default = list[str] | None, None
    elif not has_default:
        if not isinstance(default, bool) and default is not None and field.name != "model":
            about = f"{about} Default: {default}."
        kind, default = kind | None, None
    if field.name == "model":
        info = typer.Argument(metavar="MODEL", help=about, show_default=False)
        return _make_parameter(field.name, Annotated[kind, info], default)
    is_hidden = default is None or isinstance(default, bool)
    info = typer.Option(
        *names,
        metavar=setting.metavar,
        help=about,
        show_default=not is_hidden,
        autocompletion=_completion(setting.choices),
    )
    return _make_parameter(field.name, Annotated[kind, info], default)


def _completion(choices: Sequence[str]) -> Callable[[str], list[str]] | None:
    """Return the function for shell completion of values, or None without choices."""
    if not choices:
        return None
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _make_parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=kind,
        default=empty if default is MISSING else default,
    )


# --- recipes ---


def read_recipe(values: Mapping[str, Any], file: Path | None = None, model: bool = True) -> Recipe:
    """Return the recipe of a command: the values of a file, overridden by flags.

    values: of the flags by field; None for missing flags, lists of NAME=VALUE for mappings. model:
    whether the recipe must name a model. Names are checked before torch is imported. The
    temperature of a file is dropped if the policy has none. Raises InputError for invalid values,
    and for a flag --temperature that the policy does not read.
    """
    base = Recipe.read(file) if file is not None else Recipe()
    changes = {name: value for name, value in values.items() if value is not None}
    if model and file is None and "model" not in changes:
        raise InputError(
            "No model given. Enter a built-in model (demo-llama, demo-opt, smollm2-135m), a "
            "folder, a .gguf file or a hub id, or a --recipe with a model."
        )
    for name in MAPPINGS.keys() & changes.keys():
        changes[name] = {**getattr(base, name), **dict(map(READERS[name], changes[name]))}
    recipe = base.with_(**changes)
    check_choices(recipe)
    if recipe.temperature is not None and not has_temperature(recipe.policy):
        if "temperature" in changes:
            raise InputError(
                f"Policy {recipe.policy} has no temperature. Leave out --temperature, or choose a "
                "policy that has it, such as softmax."
            )
        recipe = recipe.with_(temperature=None)
    if model:
        locate_local(recipe.model, recipe.revision)
    return recipe


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{quoted(text)} is not a valid option. Enter NAME=VALUE.")
    return name.strip(), value.strip()


def _component_ratio(text: str) -> tuple[str, float]:
    component, _, share = text.partition("=")
    try:
        return component.strip(), float(share)
    except ValueError:
        raise InputError(
            f"{quoted(text)} is not a valid --component-ratio. Enter COMPONENT=RATIO, such as "
            "qk=0.3."
        ) from None


def _rank_override(text: str) -> tuple[str, int]:
    slot, _, rank = text.partition("=")
    if not re.fullmatch("[0-9]{1,9}", rank.strip()):
        raise InputError(
            f"{quoted(text)} is not a valid --rank-override. Enter LAYER.COMPONENT=RANK, such as "
            "3.mlp=120."
        )
    return slot.strip(), int(rank)


READERS = {
    "options": _option,
    "policy_options": _option,
    "component_ratios": _component_ratio,
    "rank_overrides": _rank_override,
}
