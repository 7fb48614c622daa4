"""A recipe as scripts and agents give it to an endpoint: a mapping whose fields are typed, so that
the endpoint's schema lists them with their choices.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, get_origin, get_type_hints

import lrcore

NAMES = {"method": tuple(lrcore.METHODS), "policy": tuple(lrcore.POLICIES)}
CHOICES = {one.name: one.metadata["setting"].choices for one in fields(lrcore.Recipe)}


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
