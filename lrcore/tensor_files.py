"""Offloaded tensors: safetensors files read and written one tensor at a time, and lists of values.

Neither a file nor a list needs to fit into memory.
"""

import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from .as_json import json_text
from .files import folder_of_this_process, writing

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Temporary:
    """A temporary file in `folder`, deleted with the last reference to this object.

    At the latest when the process ends; after a kill, when another process uses `folder`.
    """

    def __init__(self, folder: Path) -> None:
        with writing(folder):
            self.path = folder_of_this_process(folder) / f"{uuid.uuid4().hex}.safetensors"
            # the cache may have been emptied in the meantime
            self.path.parent.mkdir(parents=True, exist_ok=True)
        weakref.finalize(self, self.path.unlink, missing_ok=True)


@dataclass(frozen=True)
class StoredTensor:
    """An offloaded tensor: its place in a safetensors file.

    dtype: what it is read as, whatever the file holds. owner: keeps a temporary file alive.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    owner: Temporary | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    def map(self) -> Tensor:
        """The tensor [*shape], memory-mapped; converted where dtype differs."""
        with safe_open(self.file, "pt") as opened:
            tensor: Tensor = opened.get_tensor(self.name)
            return tensor.to(self.dtype)

    def read(self, device: torch.device | str = "cpu") -> Tensor:
        """The tensor [*shape] as a copy in memory."""
        with safe_open(self.file, "pt") as opened:
            tensor: Tensor = opened.get_tensor(self.name)
            return tensor.to(device, self.dtype, copy=True)

    def read_into(self, tensor: Tensor) -> None:
        """Fill a tensor [*shape] of this dtype, in memory."""
        with safe_open(self.file, "pt") as opened:
            tensor.copy_(opened.get_tensor(self.name))


def as_dtype(tensors: Mapping[str, StoredTensor], dtype: torch.dtype) -> dict[str, StoredTensor]:
    """The same tensors, to be read in another floating-point dtype; integers stay integers."""
    return {
        name: replace(s, dtype=dtype) if s.dtype.is_floating_point else s
        for name, s in tensors.items()
    }


def stored_tensors(file: Path, owner: Temporary | None = None) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, by name; nothing but the header is read."""
    with safe_open(file, "pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        return {
            name: StoredTensor(file, name, tuple(s.get_shape()), DTYPES[s.get_dtype()], owner)
            for name, s in slices.items()
        }


def stored_in(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """The tensors of several safetensors files together, by name."""
    return {name: place for file in files for name, place in stored_tensors(file).items()}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor | StoredTensor],
    metadata: Mapping[str, str],
    check: Callable[[str, Tensor], None] | None = None,
) -> None:
    """Write a safetensors file of tensors of any shape [...], loading at most one at a time.

    check(name, tensor): called with each before it is written; what it raises leaves a part of a
    file. Raises Shortage where there is no room for it.
    """
    # widest dtype first, so that every tensor is aligned
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json_text(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with writing(path, 8 + len(text) + end), path.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            given = tensors[name]
            tensor = given.map() if isinstance(given, StoredTensor) else given
            if check is not None:
                check(name, tensor)
            flat = tensor.detach().cpu().contiguous().flatten()
            opened.write(flat.view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class _OffloadedTensor:
    """A tensor of an offloaded value; order: its dimensions by stride, outermost first."""

    stored: StoredTensor
    order: tuple[int, ...]


def put_away(value: Any, file: Temporary) -> Any:
    """Write the tensors of a value to a file; returns the value with their places instead."""
    tensors: dict[str, Tensor] = {}
    offloaded: dict[tuple[Any, ...], _OffloadedTensor] = {}

    def put(tensor: Tensor) -> _OffloadedTensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in offloaded:
            order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
            name = str(len(tensors))
            tensors[name] = tensor.permute(order)
            shape = tuple(tensors[name].shape)
            stored = StoredTensor(file.path, name, shape, tensor.dtype, file)
            offloaded[key] = _OffloadedTensor(stored, order)
        return offloaded[key]

    places = _mapped(value, Tensor, put)
    write_tensors(file.path, tensors, {})
    return places


class OffloadedList(Sequence[Any]):
    """A list of values whose tensors are offloaded, one file per value; an entry is read each time.

    Values are trees of dataclasses, mappings, lists and tuples. Tensors keep their memory layout,
    because products of transposed matrices round differently; a tensor that a value holds twice
    stays one tensor. folder: for the files.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self._folder, self._device = folder, device
        self._values: list[Any] = []
        self._files: list[Temporary] = []

    def append(self, value: Any) -> None:
        """Write the value's tensors to a file; they are no longer held in memory."""
        file = self.file()
        self.add(put_away(value, file), file)

    def file(self) -> Temporary:
        """A file for the next value, for `put_away`, here or in another process."""
        return Temporary(self._folder)

    def add(self, value: Any, file: Temporary) -> None:
        """A value that was put away in a file of this list; the list keeps the file."""
        self._values.append(value)
        self._files.append(file)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        read: dict[str, Tensor] = {}

        def get(offloaded: _OffloadedTensor) -> Tensor:
            stored = offloaded.stored
            if stored.name not in read:
                places = sorted(range(len(offloaded.order)), key=offloaded.order.__getitem__)
                read[stored.name] = stored.read(device=self._device).permute(places)
            return read[stored.name]

        return _mapped(self._values[index], _OffloadedTensor, get)


def memory_of(value: Any) -> dict[int, int]:
    """The bytes of every piece of memory that tensors of a tree lie in, by its address."""
    found: dict[int, int] = {}

    def add(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    _mapped(value, Tensor, add)
    return found


def on_device(value: Any, device: torch.device) -> Any:
    """The same tree with its tensors on a device; those that are there are not copied, and one
    that the tree holds twice stays one.
    """
    known: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor, whose id may not be reused

    def move(tensor: Tensor) -> Tensor:
        return known.setdefault(id(tensor), (tensor, tensor.to(device)))[1]

    return _mapped(value, Tensor, move)


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The same tree with every value of type `kind` changed."""
    if isinstance(value, kind):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value) if f.init]
        changed = {name: _mapped(getattr(value, name), kind, change) for name in names}
        return replace(value, **changed)
    if isinstance(value, Mapping):
        return {key: _mapped(entry, kind, change) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(entry, kind, change) for entry in value)
    return value
