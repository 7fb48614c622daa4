"""What leaves this machine names files and folders by their last part: a hub id stays, the path of
a folder becomes the folder's name.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..models.load import LoadedModel
from ..provenance import Provenance

_STARTS = ("/", "~", "./", "../")
T = TypeVar("T")


def without_paths(values: T) -> T:
    """JSON-able values whose strings name no folder of this machine."""
    if isinstance(values, str):
        return _last_part(values)  # type: ignore[return-value]
    if isinstance(values, Mapping):
        return {name: without_paths(value) for name, value in values.items()}  # type: ignore[return-value]
    if isinstance(values, list | tuple):
        return [without_paths(value) for value in values]  # type: ignore[return-value]
    return values


def public_provenance(provenance: Provenance) -> Provenance:
    """How a model came to be, without paths of this machine."""
    return Provenance.from_dict(without_paths(provenance.to_dict()))


def public_model(model: LoadedModel) -> LoadedModel:
    """A model whose name and provenance hold no path; its files stay where they are."""
    known = public_provenance(model.provenance)
    return replace(
        model,
        name=without_paths(model.name),
        history=known.history,
        base=known.base,
        account=known.account,
    )


def names_a_path(values: Any) -> bool:
    """Whether a string in JSON values is an absolute path."""
    if isinstance(values, str):
        return len(values) > 1 and Path(values).is_absolute()
    if isinstance(values, Mapping):
        return any(map(names_a_path, values.values()))
    return isinstance(values, list) and any(map(names_a_path, values))


def _last_part(text: str) -> str:
    local = text.startswith(_STARTS) or Path(text).is_absolute()
    file = text.rpartition(":")[0]  # of "FILE:test"
    named = local or ("/" in text and (_exists(text) or ("/" in file and _exists(file))))
    return Path(text).name or text if named else text


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or a character that none may hold
        return False
