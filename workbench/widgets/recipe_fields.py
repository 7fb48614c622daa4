"""The type of a recipe in the endpoints: its schema lists every field with its choices."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

import lrcore
from lrcore.methods import METHODS
from lrcore.ranks.policies import POLICIES

NAMES = {"method": tuple(METHODS), "policy": tuple(POLICIES)}
CHOICES = {field.name: field.metadata["setting"].choices for field in fields(lrcore.Recipe)}


def _kind(name: str, annotated: Any) -> Any:
    choices = NAMES.get(name) or CHOICES[name]
    if choices:
        return Literal[choices]
    if get_origin(annotated) is Mapping:
        return dict[get_args(annotated)]  # type: ignore[misc]
    return annotated


if TYPE_CHECKING:
    RecipeFields = dict[str, Any]
else:
    RecipeFields = TypedDict(
        "RecipeFields",
        {name: _kind(name, kind) for name, kind in get_type_hints(lrcore.Recipe).items()},
        total=False,
    )
