"""Pickling of tasks, units and results for different processes.

A loaded model is replaced by the location that it was read from, so that its weights are not sent;
each worker reads them once. Further values of the size of a model are in files of the cache, whose
paths are sent. A device is sent without its number: each process uses its current GPU.
"""

import io
import pickle
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...checkpoints.checkpoint import load
from ...models.load import LoadedModel
from ...system.errors import InputError
from ...system.locks import Lock


@dataclass(frozen=True)
class _ModelLocation:
    """The location and identity of a loaded model. device: its type, such as "cuda"."""

    name: str
    folder: str
    fingerprint: str
    dtype: str
    device: str
    offloaded: bool


def pack(value: Any) -> bytes:
    """Return a value as bytes for `unpack` in a different process."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpack(payload: bytes) -> Any:
    """Return the value that was packed by a process of this project.

    Raises InputError if a model in it cannot be read on this machine.
    """
    return _Unpickler(io.BytesIO(payload)).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        """Return the replacement of a value that is not pickled; None for all other values."""
        if isinstance(value, LoadedModel):
            return _ModelLocation(
                value.name,
                str(value.folder.absolute()),
                value.fingerprint,
                value.dtype,
                value.device.type,
                value.offloaded,
            )
        if isinstance(value, Lock):  # belongs to the process that waits for the result
            return "lock"
        return None

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor or a device other than the CPU is made by the receiver."""
        if type(value) is torch.device and value.index is not None:
            return _current_device, (value.type,)
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            return _on_current_device, (value.cpu(), value.device.type)
        return NotImplemented


def _current_device(kind: str) -> torch.device:
    """Return the device of this process; kind: such as "cuda"."""
    return torch.device(kind, torch.cuda.current_device() if kind == "cuda" else 0)


def _on_current_device(tensor: Tensor, kind: str) -> Tensor:
    """Return a tensor [...] of the CPU on the device of this process."""
    return tensor.to(_current_device(kind))


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, location: Any) -> Any:
        """Return the value that a persistent id represents."""
        return _read(location) if isinstance(location, _ModelLocation) else None


@lru_cache(maxsize=1)
def _read(location: _ModelLocation) -> LoadedModel:
    """Return the model at a location; the last model is cached for further tasks."""
    source = location.folder if Path(location.folder).is_dir() else location.name
    model = load(source, None, location.dtype, location.device, location.offloaded)
    if model.fingerprint != location.fingerprint:
        raise InputError(
            f"A worker of the cluster read a different model from '{source}' than "
            f"'{location.name}'. Save the model to a folder that all machines share, and load it "
            "from that folder."
        )
    return replace(model, name=location.name)
