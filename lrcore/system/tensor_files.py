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
from .errors import InputError
from .files import process_folder, writing

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
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Temporary:
    """A temporary file in `folder`, deleted with the last reference to this object or at the end of
    the process; after a kill, by the next process that uses `folder`.
    """

    def __init__(self, folder: Path) -> None:
        with writing(folder):
            self.path = process_folder(folder) / f"{uuid.uuid4().hex}.safetensors"
            # the cache can be cleared in the meantime
            self.path.parent.mkdir(parents=True, exist_ok=True)
        weakref.finalize(self, self.path.unlink, missing_ok=True)


@dataclass(frozen=True)
class StoredTensor:
    """An offloaded tensor: a name in a safetensors file.

    dtype: of the tensor that is returned; the dtype in the file can differ. owner: keeps a
    temporary file alive.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    owner: Temporary | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    def load(self) -> Tensor:
        """Return the tensor [*shape] in the dtype of the file, memory-mapped."""
        with safe_open(self.file, "pt") as file:
            tensor: Tensor = file.get_tensor(self.name)
            return tensor

    def is_converted(self, dtype: torch.dtype) -> bool:
        """Return True if the tensor takes memory in a dtype, since it is not memory-mapped."""
        return self.dtype != dtype

    def map(self) -> Tensor:
        """Return the tensor [*shape], memory-mapped, or converted if dtype differs."""
        return self.load().to(self.dtype)

    def read(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a copy [*shape] in memory."""
        return self.load().to(device, self.dtype, copy=True)

    def read_into(self, tensor: Tensor) -> None:
        """Copy the values into a tensor [*shape]."""
        tensor.copy_(self.load())


def as_dtype(tensors: Mapping[str, StoredTensor], dtype: torch.dtype) -> dict[str, StoredTensor]:
    """Return the tensors with another dtype; tensors of integers are unchanged."""
    return {
        name: replace(s, dtype=dtype) if s.dtype.is_floating_point else s
        for name, s in tensors.items()
    }


def stored_tensors(file: Path, owner: Temporary | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name; only the header is read.

    Raises InputError for a dtype that torch lacks, such as numbers of 4 bits.
    """
    with safe_open(file, "pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        for name, part in slices.items():
            if part.get_dtype() not in DTYPES:
                raise InputError(
                    f"'{name}' in '{file}' is stored as {part.get_dtype()}, which is not read. Use "
                    "a model that is not quantized."
                )
        return {
            name: StoredTensor(file, name, tuple(s.get_shape()), DTYPES[s.get_dtype()], owner)
            for name, s in slices.items()
        }


def stored_in(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of several safetensors files by name."""
    return {name: stored for file in files for name, stored in stored_tensors(file).items()}


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor | StoredTensor],
    metadata: Mapping[str, str],
    check: Callable[[str, Tensor], None] | None = None,
) -> None:
    """Write a safetensors file of tensors of any shape [...], with a single tensor in memory.

    check(name, tensor): called before each tensor is written; an exception leaves an incomplete
    file. Raises ResourceError for a full disk.
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
    with writing(path, 8 + len(text) + end), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            value = tensors[name]
            tensor = value.map() if isinstance(value, StoredTensor) else value
            if check is not None:
                check(name, tensor)
            flat = tensor.detach().cpu().contiguous().flatten()
            file.write(flat.view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class _OffloadedTensor:
    """A tensor of an offloaded value. order: dimensions by stride, the largest first."""

    stored: StoredTensor
    order: tuple[int, ...]


def put_away(value: Any, file: Temporary) -> Any:
    """Write the tensors of a value to a file; return the value with references in their place."""
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

    references = _mapped(value, Tensor, put)
    write_tensors(file.path, tensors, {})
    return references


class OffloadedList(Sequence[Any]):
    """A list of values with offloaded tensors, a file per value; each access reads the file.

    Values are trees of dataclasses, mappings, lists and tuples. Tensors keep their memory layout,
    because products of transposed matrices round differently. A tensor that occurs twice in a
    value is stored once. folder: of the files.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self._folder, self._device = folder, device
        self._values: list[Any] = []
        self._files: list[Temporary] = []

    def append(self, value: Any) -> None:
        """Write the tensors of a value to a file."""
        file = self.file()
        self.add(put_away(value, file), file)

    def file(self) -> Temporary:
        """Return a file for the next value, for `put_away` in this or another process."""
        return Temporary(self._folder)

    def add(self, value: Any, file: Temporary) -> None:
        """Append a value that `put_away` wrote to a file of this list."""
        self._values.append(value)
        self._files.append(file)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        read: dict[str, Tensor] = {}

        def get(offloaded: _OffloadedTensor) -> Tensor:
            stored = offloaded.stored
            if stored.name not in read:
                inverse = sorted(range(len(offloaded.order)), key=offloaded.order.__getitem__)
                read[stored.name] = stored.read(device=self._device).permute(inverse)
            return read[stored.name]

        return _mapped(self._values[index], _OffloadedTensor, get)


def memory_of(value: Any) -> dict[int, int]:
    """Return the bytes of the storages of all tensors of a tree, by address."""
    sizes: dict[int, int] = {}

    def add(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    _mapped(value, Tensor, add)
    return sizes


def on_device(value: Any, device: torch.device) -> Any:
    """Move the tensors of a tree to a device; tensors on the device are not copied.

    A tensor that occurs twice in the tree stays a single tensor.
    """
    moved: dict[int, tuple[Tensor, Tensor]] = {}  # holds the tensor, so that its id is not reused

    def move(tensor: Tensor) -> Tensor:
        return moved.setdefault(id(tensor), (tensor, tensor.to(device)))[1]

    return _mapped(value, Tensor, move)


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a tree with `change` applied to values of type `kind`."""
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
