"""A recipe from the command line: the file's fields, then the flags given."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, quoted
from ..models.hub import on_this_machine
from ..recipe import MAPPINGS, Recipe
from .listing import check_choices


def read_recipe(values: Mapping[str, Any], file: Path | None = None, model: bool = True) -> Recipe:
    """The recipe of a command, each field checked, and names looked up before any work.

    values: those of the flags by field, None for what was not given; a mapping as its NAME=VALUE
    texts. model: the recipe must name one. Raises InputError for what is wrong.
    """
    base = Recipe.read(file) if file is not None else Recipe()
    given = {name: value for name, value in values.items() if value is not None}
    if model and file is None and "model" not in given:
        raise InputError(
            "No model. Give a built-in model (demo-llama, demo-opt, smollm2-135m), a folder, a "
            ".gguf file or a hub id, or a --recipe that names one."
        )
    for name in MAPPINGS.keys() & given.keys():
        given[name] = {**getattr(base, name), **dict(map(READERS[name], given[name]))}
    recipe = base.with_(**given)
    check_choices(recipe)
    if model:
        on_this_machine(recipe.model, recipe.revision)  # before torch is imported
    return recipe


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"A setting reads NAME=VALUE; got {quoted(text)}.")
    return name.strip(), value.strip()


def _component_ratio(text: str) -> tuple[str, float]:
    component, _, share = text.partition("=")
    try:
        return component.strip(), float(share)
    except ValueError:
        raise InputError(
            f"--component-ratio reads COMPONENT=RATIO, such as qk=0.3; got {quoted(text)}."
        ) from None


def _override(text: str) -> tuple[str, int]:
    slot, _, rank = text.partition("=")
    if not re.fullmatch("[0-9]{1,9}", rank.strip()):
        raise InputError(
            f"--override reads LAYER.COMPONENT=RANK, such as 3.mlp=120; got {quoted(text)}."
        )
    return slot.strip(), int(rank)


READERS = {
    "options": _option,
    "policy_options": _option,
    "component_ratios": _component_ratio,
    "overrides": _override,
}
