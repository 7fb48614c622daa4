"""What travels between processes: tasks, units and results, pickled.

A loaded model travels as the place that it was read from, so that no weights do: each worker reads
it there once. What else is of the size of a model lies in files of the cache, whose places travel.
"""

import io
import pickle
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import load
from ..errors import InputError
from ..locks import Lock
from ..models.load import LoadedModel


@dataclass(frozen=True)
class _ModelPlace:
    """A loaded model, by where it was read and what it is. device: its kind, such as "cuda"."""

    name: str
    folder: str
    fingerprint: str
    dtype: str
    device: str
    offloaded: bool


def pack(value: Any) -> bytes:
    """A value as bytes for `unpack` of another process."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpack(payload: bytes) -> Any:
    """What `pack` was given, of this project's own processes only.

    Raises InputError where a model in it cannot be read here.
    """
    return _Unpickler(io.BytesIO(payload)).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        """What stands for a value that is not pickled itself; None for any other."""
        if isinstance(value, LoadedModel):
            return _ModelPlace(
                value.name,
                str(value.folder.absolute()),
                value.fingerprint,
                value.dtype,
                value.device.type,
                value.offloaded,
            )
        if isinstance(value, Lock):  # stays with the process that waits for the result
            return "lock"
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, place: Any) -> Any:
        """What a persistent id stands for."""
        return _read(place) if isinstance(place, _ModelPlace) else None


@lru_cache(maxsize=1)
def _read(place: _ModelPlace) -> LoadedModel:
    """The model at a place; the last one is held, for further tasks."""
    named = place.folder if Path(place.folder).is_dir() else place.name
    model = load(named, None, place.dtype, place.device, place.offloaded)
    if model.fingerprint != place.fingerprint:
        raise InputError(
            f"A worker of the cluster read another model at '{named}' than '{place.name}'. Save "
            "the model to a folder that all machines see, and load it from there."
        )
    return replace(model, name=place.name)
