"""Offloading of decoder layers to disk.

The parameters of an offloaded layer are on the device "meta". `present(layer)` loads them from the
safetensors files for a block of code, and hooks load them for each forward pass. When the layer is
released, tensors that were replaced are written to a temporary file. Therefore a network that
`write_layer` compresses layer by layer never has more than a single layer in memory.
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

from ..layers.modules.projections import StoredLinear
from ..system.tensor_files import StoredTensor, Temporary, stored_tensors, write_tensors
from .architectures import architecture_of, decoder_layers

M_MMAP_THRESHOLD = -3  # from malloc.h
ATTRIBUTE = "offloaded"  # the attribute of a layer that holds its Offloaded


class LayerReader(Protocol):
    """A reader of layers before they are loaded; see read_ahead.py."""

    def pop_tensors(self, layer: "Offloaded") -> dict[StoredTensor, Tensor]:
        """Return the tensors [...] of a layer that were read ahead: all or none."""
        ...

    def begin_after(self, layer: "Offloaded") -> None:
        """Start to read the layer after a loaded layer."""
        ...


class Offloaded:
    """The stored tensors of a layer by name, and the tensors that are loaded.

    ahead: reader that reads them ahead, or None; a clone has none.
    """

    def __init__(
        self, tensors: Mapping[str, StoredTensor], folder: Path, device: torch.device
    ) -> None:
        self.tensors, self.folder, self.device = dict(tensors), folder, device
        self._users, self._lock = 0, RLock()
        self._loaded: dict[str, Tensor] = {}
        self.ahead: LayerReader | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Offloaded":
        """Return the stored tensors for a clone of the layer, with separate loading."""
        return Offloaded(self.tensors, self.folder, self.device)

    def load(self, layer: nn.Module) -> None:
        """Load the tensors into the layer, unless they are in use already."""
        with self._lock:
            if not self._users:
                ahead = self.ahead  # another thread may set it to None
                read = {} if ahead is None else ahead.pop_tensors(self)
                for name, stored in self.tensors.items():
                    read[stored] = put_tensor(
                        layer, name, read[stored] if stored in read else stored.read(self.device)
                    )
                    self._loaded[name] = read[stored]
                if ahead is not None:
                    ahead.begin_after(self)
            self._users += 1

    def release(self, layer: nn.Module) -> None:
        """Release the tensors after the last user, and write replaced tensors."""
        with self._lock:
            # Never below zero: a forward pass whose load failed calls this, too.
            self._users = max(self._users - 1, 0)
            if self._users or not self._loaded:
                return
            current = named_tensors(layer)
            new = {n: tensor for n, tensor in current.items() if self._loaded.get(n) is not tensor}
            unchanged = {name: self.tensors[name] for name in current if name not in new}
            self.tensors = unchanged | self._write(new)
            move_to_meta(layer)
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
    """Load an offloaded layer's tensors while the context is active; no effect on other layers."""
    offloaded = getattr(layer, ATTRIBUTE, None)
    if offloaded is None:
        yield
        return
    offloaded.load(layer)
    try:
        yield
    finally:
        offloaded.release(layer)


def offload(layer: nn.Module, offloaded: Offloaded) -> None:
    """Offload a layer to stored tensors; its current tensors are dropped."""
    move_to_meta(layer)
    setattr(layer, ATTRIBUTE, offloaded)
    layer.register_forward_pre_hook(_before)
    layer.register_forward_hook(_after, always_call=True)


def return_freed_memory() -> None:
    """Make glibc return freed large blocks to the system; no effect with other C libraries.

    By default glibc keeps blocks of up to 32 MB, which add up to the size of a layer. Call this
    before the network is built: blocks in the heap stay there.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**20)
        library.malloc_trim(0)


def move_to_meta(layer: nn.Module) -> None:
    """Move a layer's tensors to the device "meta", and drop matrices made from them."""
    for name, tensor in named_tensors(layer).items():
        put_tensor(layer, name, tensor.to("meta"))
    for module in layer.modules():
        if isinstance(module, StoredLinear):
            module.drop_kept_matrix()


# Hooks are functions of this module, not closures, so that a deep copy of a layer has hooks, too.
def _before(layer: nn.Module, _args: Any) -> None:
    getattr(layer, ATTRIBUTE).load(layer)


def _after(layer: nn.Module, _args: Any, _out: Any) -> None:
    getattr(layer, ATTRIBUTE).release(layer)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers [...] by name; a tied tensor occurs repeatedly."""
    tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
    return tensors


def stored_tensors_of(network: PreTrainedModel) -> dict[str, StoredTensor]:
    """Return the stored tensors of all offloaded layers, by their names in the network."""
    offloaded = {
        path: getattr(module, ATTRIBUTE)
        for path, module in network.named_modules()
        if hasattr(module, ATTRIBUTE)
    }
    return {
        f"{path}.{name}": stored
        for path, layer in offloaded.items()
        for name, stored in layer.tensors.items()
    }


def put_tensor(module: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Replace a parameter or buffer by a tensor [...] without gradients; return the new entry.

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


def map_weights(
    network: PreTrainedModel, stored: Mapping[str, StoredTensor], device: torch.device, folder: Path
) -> dict[str, Any]:
    """Connect each tensor of an empty network to its file; layers are not read.

    Embeddings, norms and head are memory-mapped, or read if they must be converted or moved to a
    device. folder: for tensors that replace those of a layer later. Returns missing_keys,
    mismatched_keys and unexpected_keys as transformers does; if one of the first two is not empty,
    no tensor was connected.
    """
    needed = named_tensors(network)
    names = _match_names(network, needed, stored)
    tensors = {name: stored[source] for name, source in names.items()}
    missing = [
        name for name in needed if name not in tensors and name not in network.all_tied_weights_keys
    ]
    mismatched = [
        (name, tensor.shape, tuple(needed[name].shape))
        for name, tensor in tensors.items()
        if tensor.shape != tuple(needed[name].shape)
    ]
    if not missing and not mismatched:
        _attach(network, tensors, device, folder)
    unexpected = sorted(stored.keys() - names.values())
    return {"missing_keys": missing, "mismatched_keys": mismatched, "unexpected_keys": unexpected}


def _match_names(
    network: PreTrainedModel, needed: Mapping[str, torch.Tensor], stored: Mapping[str, StoredTensor]
) -> dict[str, str]:
    """Return the names in the files by the names in the network.

    Names in files may differ: a base model lacks the prefix, and GPT-NeoX has a different name for
    the head.
    """
    prefix = f"{network.base_model_prefix}."
    aliases = {
        name: (name, name.removeprefix(prefix), name.replace("lm_head.", "embed_out."))
        for name in needed
    }
    sources = {
        name: next((alias for alias in names if alias in stored), None)
        for name, names in aliases.items()
    }
    return {name: source for name, source in sources.items() if source is not None}


def _attach(
    network: PreTrainedModel,
    tensors: Mapping[str, StoredTensor],
    device: torch.device,
    folder: Path,
) -> None:
    prefix = f"{architecture_of(network).layers}."
    for index, layer in enumerate(decoder_layers(network)):
        start = f"{prefix}{index}."
        of_layer = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
        offload(layer, Offloaded(of_layer, folder, device))
    for name, stored in tensors.items():
        if not name.startswith(prefix):
            put_tensor(network, name, stored.map() if device.type == "cpu" else stored.read(device))
    for module in network.modules():
        # Buffers that are in no file, such as the frequencies of rotary embeddings.
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type != "meta":
                module._buffers[name] = buffer.to(device)
    network.tie_weights()
