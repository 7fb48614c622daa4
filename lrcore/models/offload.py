"""Decoder layers whose tensors wait on disk and are in memory only while a layer is read, written
or run.

Each offloaded layer knows where its tensors are and brings them by itself: `present(layer)` holds
them, and every forward pass does so for its duration. What has been exchanged in between goes to a
temporary file when the layer is let go, so a network that `write_layer` compresses layer by layer
never has more than one of them in memory. Between, parameters are on the device "meta".
"""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor_files import StoredTensor, Temporary, stored_tensors, write_tensors

M_MMAP_THRESHOLD = -3  # as malloc.h names it
PLACE = "offloaded"  # the attribute of a layer that holds its Offloaded


class Offloaded:
    """Where the tensors of one layer are, by name, and whether they are in memory now."""

    def __init__(
        self, tensors: Mapping[str, StoredTensor], folder: Path, device: torch.device
    ) -> None:
        self.tensors, self.folder, self.device = dict(tensors), folder, device
        self._holds, self._brought, self._lock = 0, {}, RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Offloaded":
        """Of a layer's clone: the same tensors, brought by itself."""
        return Offloaded(self.tensors, self.folder, self.device)

    def hold(self, layer: nn.Module) -> None:
        """Bring the tensors, unless somebody holds them already."""
        with self._lock:
            if not self._holds:
                read: dict[StoredTensor, Tensor] = {}
                for name, stored in self.tensors.items():
                    read[stored] = put_tensor(
                        layer, name, read[stored] if stored in read else stored.read(self.device)
                    )
                    self._brought[name] = read[stored]
            self._holds += 1

    def let_go(self, layer: nn.Module) -> None:
        """Once nobody holds them: write what has been exchanged, and forget all."""
        with self._lock:
            self._holds = max(
                self._holds - 1, 0
            )  # a forward pass that failed to bring them ends here, too
            if self._holds or not self._brought:
                return
            now = named_tensors(layer)
            new = {
                name: tensor
                for name, tensor in now.items()
                if self._brought.get(name) is not tensor
            }
            self.tensors = {
                name: self.tensors[name] for name in now if name not in new
            } | self._write(new)
            empty_out(layer)
            self._brought = {}

    def _write(self, new: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
        if not new:
            return {}
        file, first = Temporary(self.folder), {}
        names = {name: first.setdefault(id(tensor), name) for name, tensor in new.items()}
        write_tensors(file.path, {name: new[name] for name in first.values()}, {})
        stored = stored_tensors(file.path, file)
        return {name: stored[same] for name, same in names.items()}


@contextmanager
def present(layer: nn.Module) -> Iterator[None]:
    """Inside, the layer's tensors are in memory; nothing to do for a layer that is not
    offloaded.
    """
    offloaded = getattr(layer, PLACE, None)
    if offloaded is None:
        yield
        return
    offloaded.hold(layer)
    try:
        yield
    finally:
        offloaded.let_go(layer)


def offload(layer: nn.Module, offloaded: Offloaded) -> None:
    """Let a layer's tensors wait where `offloaded` says; those it has are dropped."""
    empty_out(layer)
    setattr(layer, PLACE, offloaded)
    layer.register_forward_pre_hook(_before)
    layer.register_forward_hook(_after, always_call=True)


def free_at_once() -> None:
    """Let the C library (glibc; others are left alone) give large blocks back to the system when
    they are freed.

    By itself it keeps blocks of up to 32 MB for later, which after some layers holds as much memory
    as the layer that is in use. To be called before the network is made: what lies in a gap of the
    heap stays there.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**20)
        library.malloc_trim(0)


def empty_out(layer: nn.Module) -> None:
    """Leave the shapes of a layer's tensors, and no numbers."""
    for name, tensor in named_tensors(layer).items():
        put_tensor(layer, name, tensor.to("meta"))


def _before(
    layer: nn.Module, _args: Any
) -> None:  # functions of the module: a deep copy of a layer keeps its hooks
    getattr(layer, PLACE).hold(layer)


def _after(layer: nn.Module, _args: Any, _out: Any) -> None:
    getattr(layer, PLACE).let_go(layer)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that a file holds, by every name they have."""
    return module.state_dict(keep_vars=True)


def stored_of(network: nn.Module) -> dict[str, StoredTensor]:
    """Where the tensors of all offloaded layers are, by their names in the network; empty where
    none is offloaded.
    """
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
    """Put a tensor in the place of a parameter or buffer, frozen, and return it as it then
    stands.
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
