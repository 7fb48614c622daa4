"""Offloading of decoder layers to disk, layer by layer.

An offloaded layer's parameters are on the device "meta". `present(layer)` loads them from the
safetensors files for a block of code, and hooks do so for every forward pass. When the layer is
released, tensors that were replaced in between are written to a temporary file: a network that
`write_layer` compresses layer by layer never has more than one layer in memory.
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..tensor_files import StoredTensor, Temporary, stored_tensors, write_tensors

M_MMAP_THRESHOLD = -3  # as malloc.h names it
PLACE = "offloaded"  # the attribute of a layer that holds its Offloaded


class Ahead(Protocol):
    """What reads a layer before it is loaded, see read_ahead.py."""

    def take(self, place: "Offloaded") -> dict[StoredTensor, Tensor]:
        """The tensors [...] of a layer that were read ahead: all or none."""
        ...

    def begin_after(self, place: "Offloaded") -> None:
        """Begin with the layer after the one that is loaded."""
        ...


class Offloaded:
    """The places of one layer's tensors, by name, and those that are loaded now.

    ahead: who reads them ahead, if anybody; not of a clone.
    """

    def __init__(
        self, tensors: Mapping[str, StoredTensor], folder: Path, device: torch.device
    ) -> None:
        self.tensors, self.folder, self.device = dict(tensors), folder, device
        self._users, self._lock = 0, RLock()
        self._loaded: dict[str, Tensor] = {}
        self.ahead: Ahead | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Offloaded":
        """For a clone of the layer: the same places, loaded separately."""
        return Offloaded(self.tensors, self.folder, self.device)

    def load(self, layer: nn.Module) -> None:
        """Load the tensors into the layer, unless they are in use already."""
        with self._lock:
            if not self._users:
                ahead = self.ahead  # another thread may end it
                read = {} if ahead is None else ahead.take(self)
                for name, stored in self.tensors.items():
                    read[stored] = put_tensor(
                        layer, name, read[stored] if stored in read else stored.read(self.device)
                    )
                    self._loaded[name] = read[stored]
                if ahead is not None:
                    ahead.begin_after(self)
            self._users += 1

    def release(self, layer: nn.Module) -> None:
        """After the last user: write the tensors that were replaced, and release all."""
        with self._lock:
            # not below zero: a forward pass that failed to load them ends here, too
            self._users = max(self._users - 1, 0)
            if self._users or not self._loaded:
                return
            now = named_tensors(layer)
            new = {n: tensor for n, tensor in now.items() if self._loaded.get(n) is not tensor}
            kept = {name: self.tensors[name] for name in now if name not in new}
            self.tensors = kept | self._write(new)
            empty_out(layer)
            self._loaded = {}

    def _write(self, new: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
        if not new:
            return {}
        file = Temporary(self.folder)
        first: dict[int, str] = {}
        names = {name: first.setdefault(id(tensor), name) for name, tensor in new.items()}
        write_tensors(file.path, {name: new[name] for name in first.values()}, {})
        stored = stored_tensors(file.path, file)
        return {name: stored[same] for name, same in names.items()}


@contextmanager
def present(layer: nn.Module) -> Iterator[None]:
    """Inside, an offloaded layer's tensors are in memory; other layers are left alone."""
    offloaded = getattr(layer, PLACE, None)
    if offloaded is None:
        yield
        return
    offloaded.load(layer)
    try:
        yield
    finally:
        offloaded.release(layer)


def offload(layer: nn.Module, offloaded: Offloaded) -> None:
    """Offload a layer to the places in `offloaded`; the tensors it has now are dropped."""
    empty_out(layer)
    setattr(layer, PLACE, offloaded)
    layer.register_forward_pre_hook(_before)
    layer.register_forward_hook(_after, always_call=True)


def free_at_once() -> None:
    """Make glibc return large blocks to the system when they are freed; no effect on others.

    By default it keeps blocks of up to 32 MB, which after some layers add up to another layer.
    Call it before the network is made: blocks already inside the heap stay there.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**20)
        library.malloc_trim(0)


def empty_out(layer: nn.Module) -> None:
    """Move a layer's tensors to the device "meta": shapes without numbers."""
    for name, tensor in named_tensors(layer).items():
        put_tensor(layer, name, tensor.to("meta"))


# Hooks are functions of this file, not closures: a deep copy of a layer keeps its hooks.
def _before(layer: nn.Module, _args: Any) -> None:
    getattr(layer, PLACE).load(layer)


def _after(layer: nn.Module, _args: Any, _out: Any) -> None:
    getattr(layer, PLACE).release(layer)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The state dict: parameters and persistent buffers [...], by every name they have."""
    tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
    return tensors


def stored_of(network: PreTrainedModel) -> dict[str, StoredTensor]:
    """The places of the tensors of all offloaded layers, by their names in the network."""
    places = {
        path: getattr(module, PLACE)
        for path, module in network.named_modules()
        if hasattr(module, PLACE)
    }
    return {
        f"{path}.{name}": stored
        for path, place in places.items()
        for name, stored in place.tensors.items()
    }


def put_tensor(module: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Replace a parameter or buffer by a tensor [...], frozen; returns what the module then holds.

    The result is the tensor itself, or a parameter of the same shape [...].
    """
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if leaf in owner._buffers:
        owner._buffers[leaf] = tensor
        return tensor
    parameter = (
        tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
    )
    owner._parameters[leaf] = parameter
    return parameter
