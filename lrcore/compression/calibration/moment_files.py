"""Files of moments, a file per decoder layer.

Second moments and curvatures of all outputs are packed (see `layouts.pack`) in the dtype that the
writer chooses, and read back as [n, n] float64. All other statistics are stored unchanged. A
statistic is read on first access: those of a wide MLP take gigabytes, which a solver holds only as
long as it needs them. All collected numbers are finite, so a file with other numbers is damaged and
collected again.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...layers.statistics import OUTPUT_CURVATURES, SECOND, Moments, Need, is_finite
from ...models.load import LoadedModel
from ...system.errors import InputError
from ...system.files import draft_of
from ...system.resource_errors import raise_shortage
from ...system.tensor_files import write_tensors
from .layouts import Layout, pack, packed_length, packed_size, unpack

MAX_CACHED_BYTES = 2**26  # of one statistic: smaller ones stay in memory after the first access

T = TypeVar("T")
_recollection_lock = RLock()  # one thread of a process collects at a time


class Recollection:
    """Collects the missing files of a folder again, if the model still exists.

    A calibration must not keep the model alive, so this holds a weak reference. When it is sent to
    another process, the model is sent as the path it was loaded from.

    collect(model): writes the missing or incomplete files.
    """

    def __init__(self, model: LoadedModel | None, collect: Callable[[LoadedModel], object]) -> None:
        self._reference = None if model is None else weakref.ref(model)
        self._collect = collect

    def __call__(self) -> None:
        """Collect the files, or do nothing if the model was deleted."""
        model = self._model()
        if model is not None:
            self._collect(model)

    def _model(self) -> LoadedModel | None:
        return None if self._reference is None else self._reference()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recollection, (self._model(), self._collect)


def read_or_recollect(
    path: Path, read: Callable[[], T | None], recollect: Recollection | None
) -> T:
    """Return `read()`; if the file is missing or damaged, collect it again first.

    read: returns None for a damaged file. Raises InputError if the file cannot be collected again.
    It is deleted then, so that running the same command again writes it.
    """
    value = _read_if_intact(read)
    if value is None:
        with _recollection_lock:
            value = _read_if_intact(read)  # another thread may have collected the file
            if value is None:
                path.unlink(missing_ok=True)
                if recollect is not None:
                    recollect()
                    value = _read_if_intact(read)
    if value is None:
        raise InputError(
            f"'{path.name}' in the cache '{path.parent}' is damaged or missing. Run the same "
            "command again to collect it."
        )
    return value


def _read_if_intact(read: Callable[[], T | None]) -> T | None:
    """Return `read()`, or None if the file is missing or not a complete safetensors file."""
    try:
        return read()
    except (FileNotFoundError, SafetensorError) as error:
        raise_shortage(error)
        return None


@dataclass(frozen=True)
class MomentsFile:
    """A file of moments, read one statistic at a time.

    recollect: collects the file again if it is damaged.
    """

    path: Path
    needs: tuple[Need, ...]
    tokens: int
    recollect: Recollection | None = field(default=None, repr=False)

    @classmethod
    def at(cls, path: Path, recollect: Recollection | None = None) -> "MomentsFile":
        """Return the file at a path; only the header is read.

        Raises InputError if the file is damaged and cannot be collected again.
        """
        return read_or_recollect(path, lambda: cls._at(path, recollect), recollect)

    @classmethod
    def _at(cls, path: Path, recollect: Recollection | None) -> "MomentsFile":
        with safe_open(path, "pt") as file:
            # a matrix that was found by structure is named by its path
            needs = [tuple(name.rsplit(".", 1)) for name in file.keys()]  # noqa: SIM118 (not a dict)
            return cls(path, tuple(needs), int(file.metadata()["tokens"]), recollect)

    def read(self, need: Need, device: str = "cpu") -> Tensor:
        """Return a statistic [...] on a device. Raises InputError as `at` does."""

        def read_stored() -> Tensor | None:
            with safe_open(self.path, "pt") as file:
                return _read_statistic(file, *need)

        return read_or_recollect(self.path, read_stored, self.recollect).to(device)


def layer_file(folder: Path, layer: int) -> Path:
    """Return the path of a layer's moments."""
    return folder / f"layer-{layer:04d}.safetensors"


def is_kept(folder: Path, layer: int, counted: bool = True, layout: Layout | None = None) -> bool:
    """Return whether a folder has a complete file for a layer, judged by the header.

    counted: whether the header must have the number of tokens; files of spectra have none. layout:
    the statistics that the file must contain.
    """
    file = layer_file(folder, layer)
    try:
        if not file.is_file():  # opening a pipe would block
            return False
        with safe_open(file, "pt") as opened:
            tokens = (opened.metadata() or {}).get("tokens", "" if counted else "0")
            has_content = tokens.isdecimal() and bool(opened.keys())
            return has_content and _has_layout(opened, layout or {})
    except (OSError, SafetensorError):
        return False


def _has_layout(file: Any, layout: Layout) -> bool:
    """Return whether an open file contains all statistics of a layout, in their forms."""
    names = {".".join(need): form for need, form in layout.items()}
    if not names.keys() <= set(file.keys()):
        return False
    forms = ((file.get_slice(name), form) for name, form in names.items())
    return all(form.fits(tensor.get_shape(), tensor.get_dtype()) for tensor, form in forms)


def write_moments(moments: Moments, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write moments to a safetensors file, atomically.

    dtype: of the packed matrices.
    """
    tensors = {
        f"{tap}.{statistic}": pack(value, moments.values.get((tap, "mean")), dtype)
        if statistic in (SECOND, *OUTPUT_CURVATURES)
        else value
        for (tap, statistic), value in moments.values.items()
    }
    with draft_of(path) as draft:
        write_tensors(draft, tensors, {"tokens": str(moments.tokens)})


def read_moments(path: Path, device: str = "cpu", recollect: Recollection | None = None) -> Moments:
    """Return the moments that `write_moments` wrote.

    The file must exist as long as the moments are used, or `recollect` must be able to write it.
    """
    file = MomentsFile.at(path, recollect)
    return Moments(_LazyStatistics(file, device), file.tokens)


class _LazyStatistics(Mapping[Need, Tensor]):
    """The statistics of a file, read on first access; a large one is read again if it was freed."""

    def __init__(self, file: MomentsFile, device: str) -> None:
        self._file, self._device = file, device
        self._small: dict[Need, Tensor] = {}
        self._alive: WeakValueDictionary[Need, Tensor] = WeakValueDictionary()

    def __getitem__(self, need: Need) -> Tensor:
        if need not in self._file.needs:
            raise KeyError(need)
        value = self._alive.get(need)
        if value is None:
            value = self._alive[need] = self._file.read(need, self._device)
            if value.nbytes <= MAX_CACHED_BYTES:
                self._small[need] = value
        return value

    def __contains__(self, need: object) -> bool:
        return need in self._file.needs

    def __iter__(self) -> Iterator[Need]:
        return iter(self._file.needs)

    def __len__(self) -> int:
        return len(self._file.needs)


def _read_statistic(file: Any, tap: str, statistic: str) -> Tensor | None:
    """Return a statistic [...] of an open file, or None if it is damaged."""
    value: Tensor = file.get_tensor(f"{tap}.{statistic}")
    if not is_finite(value):
        return None
    if statistic in OUTPUT_CURVATURES:
        size = packed_size(len(value))
        return unpack(value, None, size) if len(value) == packed_length(size) else None
    if statistic != SECOND:
        return value
    is_centered = f"{tap}.mean" in file.keys()  # noqa: SIM118 (not a dict)
    mean = file.get_tensor(f"{tap}.mean") if is_centered else None
    size = len(file.get_tensor(f"{tap}.square"))
    if len(value) != packed_length(size) or (mean is not None and not is_finite(mean)):
        return None
    return unpack(value, mean, size)
