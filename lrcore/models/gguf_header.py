"""The header of a GGUF file: settings, vocabulary, and positions of the tensors.

Each length in the file is checked against the file size before it is used. Readers of other
libraries trust these lengths, and a header of a few bytes may claim 2^60 values.
"""

import mmap
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from ..data.rows import reading
from ..system.errors import InputError
from .config import error_line

_MAGIC, _VERSIONS, _STRING, _ARRAY = b"GGUF", (2, 3), 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?"} | {
    10: "Q",
    11: "q",
    12: "d",
}
_START = struct.Struct("<4sIQQ")  # magic, version, tensors, settings
_MOST_DIMENSIONS = 4
VOCABULARY = tuple(f"tokenizer.ggml.{n}" for n in ("tokens", "scores", "token_type", "merges"))


@dataclass(frozen=True)
class GgufSetting:
    """A setting. value: None for an array; record: its bytes in the file."""

    value: Any
    record: bytes


@dataclass(frozen=True)
class GgufTensor:
    """A tensor. shape: slowest dimension first; kind: ggml's name of the storage type."""

    name: str
    shape: tuple[int, ...]
    kind: str
    nbytes: int
    record: bytes

    @property
    def values(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """A GGUF file without the tensors, which begin at byte `data`."""

    path: Path
    version: int
    settings: dict[str, GgufSetting]
    tensors: tuple[GgufTensor, ...]
    data: int

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting; None for an array or a missing setting."""
        return self.settings[name].value if name in self.settings else None

    @cached_property
    def architecture(self) -> str:
        return str(self["general.architecture"])

    @property
    def alignment(self) -> int:
        return int(self["general.alignment"]) if "general.alignment" in self.settings else 32

    def write_part(self, target: Path, without: Sequence[str] = (), tensors: bool = True) -> None:
        """Write a copy of the file without some settings, or without its tensors."""
        records = [setting.record for name, setting in self.settings.items() if name not in without]
        listed = self.tensors if tensors else ()
        start = _START.pack(_MAGIC, self.version, len(listed), len(records))
        head = b"".join([start, *records, *(tensor.record for tensor in listed)])
        with target.open("wb") as written, self.path.open("rb") as read:
            written.write(head + bytes(-len(head) % self.alignment))
            read.seek(self.data)
            if tensors:
                shutil.copyfileobj(read, written, 2**22)


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file (versions 2 and 3, little-endian).

    Raises InputError if the file is no GGUF file, is truncated, or claims more data than it holds.
    """
    with reading(path), path.open("rb") as opened:
        if opened.read(4) != _MAGIC:
            raise InputError(
                f"'{path}' is not a GGUF file: it does not begin with 'GGUF'. The download may "
                "have failed, or the file has another format: download it again."
            )
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(path, content).header()
            except (struct.error, ValueError, UnicodeDecodeError, KeyError) as error:
                raise InputError(
                    f"'{path}' is not a complete GGUF file ({len(content):,} bytes; "
                    f"{error_line(error)}). "
                    "The download or copy was probably interrupted: delete it and fetch it again."
                ) from error


class _Reader:
    """A reader at byte `at`. All methods raise ValueError or struct.error past the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.at = path, content, 0

    def header(self) -> GgufHeader:
        _, version, tensors, settings = self.unpack(_START.format)
        if version not in _VERSIONS:
            raise ValueError(f"version {version}; 2 and 3 can be read")
        named: dict[str, GgufSetting] = {}
        for _ in range(settings):
            start, name = self.at, self.string()
            if name in named:
                raise ValueError(f"'{name}' occurs twice")
            value = self.value(*self.unpack("<I"))
            named[name] = GgufSetting(value, self.content[start : self.at])
        listed = tuple(self.tensor() for _ in range(tensors))
        _check_alignment(named)
        head = GgufHeader(self.path, version, named, listed, 0)
        data = self.at + -self.at % head.alignment
        self.check_fits(listed, len(self.content) - data)
        return GgufHeader(self.path, version, named, listed, data)

    def check_fits(self, tensors: Sequence[GgufTensor], available: int) -> None:
        """Raise ValueError if tensors exceed the file, overlap, or have the same name."""
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise ValueError("two tensors have the same name")
        ends = [struct.unpack("<Q", tensor.record[-8:])[0] + tensor.nbytes for tensor in tensors]
        needed = max([*ends, sum(tensor.nbytes for tensor in tensors)], default=0)
        if needed > available:
            raise ValueError(
                f"its tensors take {needed:,} bytes, but the file has {max(available, 0):,} for "
                "them"
            )

    def unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return values

    def skip(self, count: int) -> None:
        if count > len(self.content) - self.at:
            raise ValueError(f"{count:,} bytes are claimed at byte {self.at:,}")
        self.at += count

    def string(self) -> str:
        (length,) = self.unpack("<Q")
        start = self.at
        self.skip(length)
        return self.content[start : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        """Read a setting's value; skip an array and return None."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.unpack("<" + _SCALARS[kind])[0]
        if kind != _ARRAY:
            raise ValueError(f"a setting of type {kind}")
        inner, count = self.unpack("<IQ")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize("<" + _SCALARS[inner]))
        elif inner == _STRING:
            for _ in range(count):
                self.skip(self.unpack("<Q")[0])
        else:
            raise ValueError(f"an array of type {inner}")
        return None

    def tensor(self) -> GgufTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        start, name = self.at, self.string()
        (dimensions,) = self.unpack("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"'{name}' has {dimensions} dimensions")
        sizes = self.unpack(f"<{dimensions}Q")  # fastest dimension first
        number, _ = self.unpack("<IQ")
        kind = GGMLQuantizationType(number)
        block, nbytes = GGML_QUANT_SIZES[kind]
        if min(sizes) < 1 or sizes[0] % block:
            raise ValueError(f"'{name}' has the shape {list(sizes)}")
        record = self.content[start : self.at]
        return GgufTensor(name, sizes[::-1], kind.name, prod(sizes) // block * nbytes, record)


def _check_alignment(settings: Mapping[str, GgufSetting]) -> None:
    """Raise ValueError for an invalid alignment, such as a list or infinity."""
    if "general.alignment" in settings:
        value = settings["general.alignment"].value
        if not isinstance(value, int) or value <= 0 or value % 8:
            raise ValueError(f"an alignment of {value!r}")
