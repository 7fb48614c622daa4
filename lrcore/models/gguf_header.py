"""What a GGUF file says before its numbers: settings, vocabulary, and where its tensors lie.

Every length in the file is checked against the file's size before it is used: readers of other
libraries trust them, and a header of a few bytes may promise 2^60 values.
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

from ..data.reading import reading
from ..errors import InputError
from .config import one_line

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
    """A name and a value. value: None for an array; record: its bytes in the file."""

    value: Any
    record: bytes


@dataclass(frozen=True)
class GgufTensor:
    """A tensor. shape: slowest dimension first; kind: ggml's name of how it is stored."""

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
    """All of a GGUF file but the numbers of its tensors, which begin at byte `data`."""

    path: Path
    version: int
    settings: dict[str, GgufSetting]
    tensors: tuple[GgufTensor, ...]
    data: int

    def __getitem__(self, name: str) -> Any:
        """The value of a setting; None where there is none, and for an array."""
        return self.settings[name].value if name in self.settings else None

    @cached_property
    def architecture(self) -> str:
        return str(self["general.architecture"])

    @property
    def alignment(self) -> int:
        return int(self["general.alignment"]) if "general.alignment" in self.settings else 32

    def write_part(self, target: Path, without: Sequence[str] = (), tensors: bool = True) -> None:
        """Write the file again, without some settings or without its tensors."""
        records = [one.record for name, one in self.settings.items() if name not in without]
        kept = self.tensors if tensors else ()
        start = _START.pack(_MAGIC, self.version, len(kept), len(records))
        head = b"".join([start, *records, *(one.record for one in kept)])
        with target.open("wb") as written, self.path.open("rb") as read:
            written.write(head + bytes(-len(head) % self.alignment))
            read.seek(self.data)
            if tensors:
                shutil.copyfileobj(read, written, 2**22)


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file (versions 2 and 3, little-endian).

    Raises InputError where the file is none, is cut, or promises what it does not hold.
    """
    with reading(path), path.open("rb") as opened:
        if opened.read(4) != _MAGIC:
            raise InputError(
                f"'{path}' is not a GGUF file: it does not begin with 'GGUF'. Probably a failed "
                "download or another format: fetch it again."
            )
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Reader(path, content).header()
            except (struct.error, ValueError, UnicodeDecodeError, KeyError) as error:
                raise InputError(
                    f"'{path}' is no complete GGUF file ({len(content):,} bytes; "
                    f"{one_line(error)}). "
                    "Probably an interrupted download or copy: delete it and fetch it again."
                ) from error


class _Reader:
    """Reads on from byte `at`. Every method raises ValueError or struct.error past the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.at = path, content, 0

    def header(self) -> GgufHeader:
        _, version, tensors, settings = self.unpack(_START.format)
        if version not in _VERSIONS:
            raise ValueError(f"version {version}; 2 and 3 can be read")
        named: dict[str, GgufSetting] = {}
        for _ in range(settings):
            began, name = self.at, self.string()
            if name in named:
                raise ValueError(f"'{name}' is there twice")
            value = self.value(*self.unpack("<I"))
            named[name] = GgufSetting(value, self.content[began : self.at])
        listed = tuple(self.tensor() for _ in range(tensors))
        _check_alignment(named)
        head = GgufHeader(self.path, version, named, listed, 0)
        data = self.at + -self.at % head.alignment
        self.check_fits(listed, len(self.content) - data)
        return GgufHeader(self.path, version, named, listed, data)

    def check_fits(self, tensors: Sequence[GgufTensor], available: int) -> None:
        """Raise ValueError where tensors lie outside the file, or upon each other."""
        if len({one.name for one in tensors}) < len(tensors):
            raise ValueError("two tensors have one name")
        ends = [struct.unpack("<Q", one.record[-8:])[0] + one.nbytes for one in tensors]
        needed = max([*ends, sum(one.nbytes for one in tensors)], default=0)
        if needed > available:
            raise ValueError(
                f"its tensors take {needed:,} bytes, of which {max(available, 0):,} exist"
            )

    def unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return values

    def skip(self, count: int) -> None:
        if count > len(self.content) - self.at:
            raise ValueError(f"{count:,} bytes are promised at byte {self.at:,}")
        self.at += count

    def string(self) -> str:
        (length,) = self.unpack("<Q")
        began = self.at
        self.skip(length)
        return self.content[began : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        """A setting's value; None for an array, which is walked over."""
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

        began, name = self.at, self.string()
        (dimensions,) = self.unpack("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"'{name}' has {dimensions} dimensions")
        sizes = self.unpack(f"<{dimensions}Q")  # the fastest first
        number, _ = self.unpack("<IQ")
        kind = GGMLQuantizationType(number)
        block, nbytes = GGML_QUANT_SIZES[kind]
        if min(sizes) < 1 or sizes[0] % block:
            raise ValueError(f"'{name}' has the shape {list(sizes)}")
        record = self.content[began : self.at]
        return GgufTensor(name, sizes[::-1], kind.name, prod(sizes) // block * nbytes, record)


def _check_alignment(settings: Mapping[str, GgufSetting]) -> None:
    """Raise ValueError for what is no alignment, such as a list or infinity."""
    if "general.alignment" in settings:
        value = settings["general.alignment"].value
        if not isinstance(value, int) or value <= 0 or value % 8:
            raise ValueError(f"an alignment of {value!r}")
