"""Tensors on disk, read and written one at a time: safetensors files that need not fit into
memory, and values that wait there.
"""

import json
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from .files import folder_of_this_process

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
    """A file that goes when nobody holds this any more, at the latest when the process ends;
    after a kill, when another needs `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder_of_this_process(folder) / f"{uuid.uuid4().hex}.safetensors"
        self.path.parent.mkdir(
            parents=True, exist_ok=True
        )  # somebody may have emptied the cache meanwhile
        weakref.finalize(self, self.path.unlink, missing_ok=True)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that waits in a file; dtype is the one that it is read as.

    owner, where there is one, keeps a temporary file from going.
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
        """The tensor as pages of the file, which come into memory as they are read and go where
        memory is short; converted, if need be.
        """
        with safe_open(self.file, "pt") as opened:
            return opened.get_tensor(self.name).to(self.dtype)

    def read(self, device: torch.device | str = "cpu") -> Tensor:
        """The tensor in memory of its own, independent of the file."""
        with safe_open(self.file, "pt") as opened:
            return opened.get_tensor(self.name).to(device, self.dtype, copy=True)


def as_dtype(tensors: Mapping[str, StoredTensor], dtype: torch.dtype) -> dict[str, StoredTensor]:
    """The same, to be read in another floating-point type; whole numbers stay as they are."""
    return {
        name: replace(s, dtype=dtype) if s.dtype.is_floating_point else s
        for name, s in tensors.items()
    }


def stored_tensors(file: Path, owner: Temporary | None = None) -> dict[str, StoredTensor]:
    """What a safetensors file holds, by name."""
    with safe_open(file, "pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        return {
            name: StoredTensor(file, name, tuple(s.get_shape()), DTYPES[s.get_dtype()], owner)
            for name, s in slices.items()
        }


def stored_in(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """What several safetensors files hold together, by name."""
    return {name: place for file in files for name, place in stored_tensors(file).items()}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor | StoredTensor], metadata: Mapping[str, str]
) -> None:
    """A safetensors file, tensor after tensor: beside what is in memory already, one at a time
    is.
    """
    order = sorted(
        tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)
    )  # so that every one is aligned
    header, end = {"__metadata__": dict(metadata)}, 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            tensor = (
                tensors[name].map() if isinstance(tensors[name], StoredTensor) else tensors[name]
            )
            opened.write(
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
            )


@dataclass(frozen=True)
class _Waiting:
    """A tensor of a value on disk; order: its dimensions as they lie in memory, outermost first."""

    stored: StoredTensor
    order: tuple[int, ...]


class OnDisk(Sequence):
    """A list of values whose tensors wait on disk, a file per value; each is read when it is asked
    for, and not kept.

    Values are trees of dataclasses, mappings, lists and tuples. Tensors come back in the order of
    memory that they had, since products of transposed matrices round otherwise; one tensor that
    stands in two places stays one. folder: for the files.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self._folder, self._device, self._values = folder, device, []

    def append(self, value: Any) -> None:
        """Write the value's tensors and forget them."""
        file, tensors, waiting = Temporary(self._folder), {}, {}

        def put(tensor: Tensor) -> _Waiting:
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if key not in waiting:
                order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
                name = str(len(tensors))
                tensors[name] = tensor.permute(order)
                waiting[key] = _Waiting(
                    StoredTensor(file.path, name, tuple(tensors[name].shape), tensor.dtype, file),
                    order,
                )
            return waiting[key]

        self._values.append(_mapped(value, Tensor, put))
        write_tensors(file.path, tensors, {})

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        read: dict[str, Tensor] = {}

        def get(waiting: _Waiting) -> Tensor:
            stored = waiting.stored
            if stored.name not in read:
                places = sorted(range(len(waiting.order)), key=waiting.order.__getitem__)
                read[stored.name] = stored.read(device=self._device).permute(places)
            return read[stored.name]

        return _mapped(self._values[index], _Waiting, get)


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The same tree with every value of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                f.name: _mapped(getattr(value, f.name), kind, change)
                for f in fields(value)
                if f.init
            },
        )
    if isinstance(value, Mapping):
        return {key: _mapped(entry, kind, change) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(entry, kind, change) for entry in value)
    return value
