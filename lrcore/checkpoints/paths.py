"""Removal of local paths from published files: only the names of files and folders remain."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..models.load import LoadedModel
from ..recipes.provenance import Provenance

_STARTS = ("/", "~", "./", "../")
T = TypeVar("T")


def strip_paths(values: T) -> T:
    """Replace local paths in JSON values by the names of files and folders; hub ids stay."""
    if isinstance(values, str):
        return _last_part(values)  # type: ignore[return-value]
    if isinstance(values, Mapping):
        return {name: strip_paths(value) for name, value in values.items()}  # type: ignore[return-value]
    if isinstance(values, list | tuple):
        return [strip_paths(value) for value in values]  # type: ignore[return-value]
    return values


def public_provenance(provenance: Provenance) -> Provenance:
    """Return a provenance without local paths."""
    return Provenance.from_dict(strip_paths(provenance.to_dict()))


def public_model(model: LoadedModel) -> LoadedModel:
    """Return a model without local paths in its name and provenance; its folder is unchanged."""
    provenance = public_provenance(model.provenance)
    return replace(
        model,
        name=strip_paths(model.name),
        history=provenance.history,
        base=provenance.base,
        account=provenance.account,
    )


def contains_path(values: Any) -> bool:
    """Return True if a string in JSON values is an absolute path."""
    if isinstance(values, str):
        return len(values) > 1 and Path(values).is_absolute()
    if isinstance(values, Mapping):
        return any(map(contains_path, values.values()))
    return isinstance(values, list) and any(map(contains_path, values))


def _last_part(text: str) -> str:
    is_local = text.startswith(_STARTS) or Path(text).is_absolute()
    file = text.rpartition(":")[0]  # for "FILE:test"
    is_path = is_local or ("/" in text and (_exists(text) or ("/" in file and _exists(file))))
    return Path(text).name or text if is_path else text


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # the text is too long, or has invalid characters
        return False
