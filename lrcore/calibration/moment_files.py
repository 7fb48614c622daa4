"""The moments of a layer as a file.

Second moments are packed (packing.py), in the dtype that a writer asks for; what reads them gets
[n, n] float64. Everything else is stored as it is. A statistic is read when it is asked for: those
of a wide MLP take gigabytes, which a solver has for as long as it holds them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..files import draft_of
from ..statistics import Moments, Need
from ..tensor_files import write_tensors
from .packing import packed, unpacked

SECOND = "second"  # the statistic that is packed


@dataclass(frozen=True)
class MomentsFile:
    """A file of moments whose statistics are read one at a time."""

    path: Path
    needs: tuple[Need, ...]
    tokens: int

    @classmethod
    def at(cls, path: Path) -> "MomentsFile":
        """The file at a path; nothing but its header is read."""
        with safe_open(path, "pt") as file:
            needs = [tuple(name.split(".")) for name in file.keys()]  # noqa: SIM118 (not a dict)
            return cls(path, tuple(needs), int(file.metadata()["tokens"]))

    def read(self, need: Need, device: str = "cpu") -> Tensor:
        """One statistic [...], on a device."""
        with safe_open(self.path, "pt") as file:
            return _stored(file, *need).to(device)


def layer_file(folder: Path, layer: int) -> Path:
    """The file of a layer's moments."""
    return folder / f"layer-{layer:04d}.safetensors"


def is_kept(folder: Path, layer: int, counted: bool = True) -> bool:
    """Whether the moments of a layer are there, in a file that is whole. counted: it says of how
    many tokens, as that of spectra does not.
    """
    file = layer_file(folder, layer)
    try:
        if not file.is_file():  # also a pipe, which would be waited for
            return False
        with safe_open(file, "pt") as opened:
            tokens = (opened.metadata() or {}).get("tokens", "" if counted else "0")
            return tokens.isdecimal() and bool(opened.keys())
    except (OSError, SafetensorError):
        return False


def write_moments(moments: Moments, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write moments to a safetensors file, atomically; dtype: that of packed second moments."""
    tensors = {
        f"{tap}.{statistic}": packed(value, moments.values.get((tap, "mean")), dtype)
        if statistic == SECOND
        else value
        for (tap, statistic), value in moments.values.items()
    }
    with draft_of(path) as draft:
        write_tensors(draft, tensors, {"tokens": str(moments.tokens)})


def read_moments(path: Path, device: str = "cpu") -> Moments:
    """The inverse of `write_moments`; the file must stay as long as these are in use."""
    file = MomentsFile.at(path)
    return Moments(_Read(file, device), file.tokens)


HELD = 2**26  # bytes of a statistic that stays in memory once it was read


class _Read(Mapping[Need, Tensor]):
    """The statistics of a file, each read from it when it is asked for; a large one again where
    nobody holds it any more.
    """

    def __init__(self, file: MomentsFile, device: str) -> None:
        self._file, self._device = file, device
        self._held: dict[Need, Tensor] = {}
        self._known: WeakValueDictionary[Need, Tensor] = WeakValueDictionary()

    def __getitem__(self, need: Need) -> Tensor:
        if need not in self._file.needs:
            raise KeyError(need)
        known = self._known.get(need)
        if known is None:
            known = self._known[need] = self._file.read(need, self._device)
            if known.nbytes <= HELD:
                self._held[need] = known
        return known

    def __contains__(self, need: object) -> bool:
        return need in self._file.needs

    def __iter__(self) -> Iterator[Need]:
        return iter(self._file.needs)

    def __len__(self) -> int:
        return len(self._file.needs)


def _stored(file: Any, tap: str, statistic: str) -> Tensor:
    """One statistic of an open file, [...]."""
    value: Tensor = file.get_tensor(f"{tap}.{statistic}")
    if statistic != SECOND:
        return value
    centred = f"{tap}.mean" in file.keys()  # noqa: SIM118 (not a dict)
    mean = file.get_tensor(f"{tap}.mean") if centred else None
    return unpacked(value, mean, len(file.get_tensor(f"{tap}.square")))
