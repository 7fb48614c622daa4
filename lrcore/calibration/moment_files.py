"""The moments of a layer as a file.

Second moments are packed (packing.py), in the dtype that a writer asks for; what reads them gets
[n, n] float64. Everything else is stored as it is. A statistic is read when it is asked for: those
of a wide MLP take gigabytes, which a solver has for as long as it holds them. What is read is
finite, as all that was collected is: a file is made again where it is not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..files import draft_of
from ..statistics import SECOND, Moments, Need, is_finite
from ..tensor_files import write_tensors
from .layouts import Layout
from .packing import length, packed, unpacked
from .remaking import Again, whole


@dataclass(frozen=True)
class MomentsFile:
    """A file of moments whose statistics are read one at a time. again: makes it again."""

    path: Path
    needs: tuple[Need, ...]
    tokens: int
    again: Again | None = field(default=None, repr=False)

    @classmethod
    def at(cls, path: Path, again: Again | None = None) -> "MomentsFile":
        """The file at a path; nothing but its header is read. Raises InputError where it is damaged
        and cannot be made again.
        """
        return whole(path, lambda: cls._at(path, again), again)

    @classmethod
    def _at(cls, path: Path, again: Again | None) -> "MomentsFile":
        with safe_open(path, "pt") as file:
            needs = [tuple(name.split(".")) for name in file.keys()]  # noqa: SIM118 (not a dict)
            return cls(path, tuple(needs), int(file.metadata()["tokens"]), again)

    def read(self, need: Need, device: str = "cpu") -> Tensor:
        """One statistic [...], on a device. Raises InputError as `at` does."""

        def stored() -> Tensor | None:
            with safe_open(self.path, "pt") as file:
                return _stored(file, *need)

        return whole(self.path, stored, self.again).to(device)


def layer_file(folder: Path, layer: int) -> Path:
    """The file of a layer's moments."""
    return folder / f"layer-{layer:04d}.safetensors"


def is_kept(folder: Path, layer: int, counted: bool = True, layout: Layout | None = None) -> bool:
    """Whether the moments of a layer are there, in a file that is whole, by its header. counted: it
    says of how many tokens, as that of spectra does not. layout: what it must have.
    """
    file = layer_file(folder, layer)
    try:
        if not file.is_file():  # also a pipe, which would be waited for
            return False
        with safe_open(file, "pt") as opened:
            tokens = (opened.metadata() or {}).get("tokens", "" if counted else "0")
            there = tokens.isdecimal() and bool(opened.keys())
            return there and _is_laid_out(opened, layout or {})
    except (OSError, SafetensorError):
        return False


def _is_laid_out(file: Any, layout: Layout) -> bool:
    """Whether an open file has all statistics of a layout, in their forms."""
    names = {".".join(need): form for need, form in layout.items()}
    if not names.keys() <= set(file.keys()):
        return False
    forms = ((file.get_slice(name), form) for name, form in names.items())
    return all(form.fits(own.get_shape(), own.get_dtype()) for own, form in forms)


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


def read_moments(path: Path, device: str = "cpu", again: Again | None = None) -> Moments:
    """The inverse of `write_moments`; the file must stay as long as these are in use, or can be
    made again.
    """
    file = MomentsFile.at(path, again)
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


def _stored(file: Any, tap: str, statistic: str) -> Tensor | None:
    """One statistic of an open file, [...]; None where it is none."""
    value: Tensor = file.get_tensor(f"{tap}.{statistic}")
    if not is_finite(value):
        return None
    if statistic != SECOND:
        return value
    centred = f"{tap}.mean" in file.keys()  # noqa: SIM118 (not a dict)
    mean = file.get_tensor(f"{tap}.mean") if centred else None
    size = len(file.get_tensor(f"{tap}.square"))
    if len(value) != length(size) or (mean is not None and not is_finite(mean)):
        return None
    return unpacked(value, mean, size)
