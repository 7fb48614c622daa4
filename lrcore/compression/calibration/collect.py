"""Collection of a model's moments on windows of tokens, layer by layer, into files.

On one machine all windows pass through one layer after another. In a cluster each worker runs a
share of the windows and writes the moments to a separate folder; then the shares of each layer are
joined. The products are of the same batches and added in float64, so only the rounding of the sums
differs.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...layers.experts import SAMPLE
from ...layers.statistics import EvenSample, Moments, Need
from ...models.architectures import architecture_of, decoder_layers
from ...models.layers import clone
from ...models.layerwise import check_layerwise
from ...models.load import LoadedModel
from ...models.read_ahead import reading_ahead
from ...models.stream import BATCH, LayerStream
from ...system.cache import trim
from ...system.files import writing
from ...system.progress import Progress
from ...system.units import Work, map_units, workers
from .layouts import activation_layout
from .moment_files import MomentsFile, is_kept, layer_file, write_moments
from .working_memory import check_calibration

SHARES = "shares"  # subfolder with the moments of each worker


def collect(
    model: LoadedModel, tokens: Tensor, needs: frozenset[Need], folder: Path, progress: Progress
) -> None:
    """Run windows [n, t] through the model and write the moments that the folder lacks.

    Files that do not fit the layer are replaced. Raises ResourceError before the first layer runs
    if that needs more memory than is free.
    """
    layers = len(decoder_layers(model.network))
    missing = missing_layers(model, needs, folder, range(layers))
    if missing:
        if architecture_of(model.network).is_inferred:
            check_layerwise(model.network, tokens[:1])
        _delete(layer_file(folder, layer) for layer in missing)
        task = _Pass(model, tokens, needs, folder, missing)
        if workers().apart:
            _collect_in_shares(task, progress)
        else:
            windows, length = tokens.shape
            check_calibration(model, windows, length, needs)
            task.run(_Share(0, len(tokens)), folder, progress)
        trim()
    progress("calibrate", layers, layers)


def missing_layers(
    model: LoadedModel, needs: frozenset[Need], folder: Path, layers: Sequence[int]
) -> list[int]:
    """Return the layers that a folder has no file for, or a file of a different layout."""
    layouts = {layer: activation_layout(model.network, layer, needs) for layer in layers}
    return [layer for layer, layout in layouts.items() if not is_kept(folder, layer, layout=layout)]


def _delete(files: Iterable[Path]) -> None:
    """Delete damaged files: an existing file counts as written."""
    for file in files:
        if file.is_file():
            with writing(file):
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Share:
    """The windows from `begin` up to `end`, exclusive."""

    begin: int
    end: int

    def folder(self, calibration_folder: Path) -> Path:
        """Return the folder of its moments until they are joined."""
        return calibration_folder / SHARES / f"{self.begin}-{self.end}"


@dataclass(frozen=True, eq=False)
class _Pass:
    """The task of collecting the moments of some layers on a share of the windows."""

    model: LoadedModel
    tokens: Tensor
    needs: frozenset[Need]
    folder: Path
    layers: Sequence[int]

    def __call__(self, share: _Share, progress: Progress) -> None:
        self.run(share, share.folder(self.folder), progress)

    def run(self, share: _Share, folder: Path, progress: Progress) -> None:
        """Write the moments that the folder lacks."""
        missing = missing_layers(self.model, self.needs, folder, self.layers)
        if not missing:
            return
        layers = len(decoder_layers(self.model.network))
        tokens = self.tokens[share.begin : share.end]
        first = share.begin * self.tokens.shape[1]
        stream = LayerStream(clone(self.model.network), tokens, first=first)
        with reading_ahead(stream.network):
            for layer in range(missing[-1] + 1):
                progress("calibrate", layer, layers)
                moments = stream.run(layer, self.needs if layer in missing else ())
                if moments is not None:
                    write_moments(moments, layer_file(folder, layer), self._dtype(folder))
                del moments  # free them before the next layer's are collected

    def _dtype(self, folder: Path) -> torch.dtype:
        """Return the dtype of stored second moments: shares keep the float64 of the sums."""
        return second_moment_dtype(self.model) if folder == self.folder else torch.float64


def second_moment_dtype(model: LoadedModel) -> torch.dtype:
    """Return the dtype of second moments on disk: that of the products that were summed."""
    dtype: torch.dtype = torch.promote_types(model.network.dtype, torch.float32)
    return dtype


# --- in a cluster ---


def _collect_in_shares(task: _Pass, progress: Progress) -> None:
    """Let the workers collect shares of the windows, and join them.

    After an interrupted run with the same number of workers, finished shares are kept.
    """
    folder, parts = task.folder, shares(len(task.tokens), workers().count)
    positions = {
        (tap, "places") for tap, statistic in {*task.needs, SAMPLE} if statistic == "sample"
    }
    task = replace(task, needs=task.needs | positions)
    for _ in map_units(Work("calibrate", task), parts, progress):
        pass
    joining = _Joining(folder, parts, second_moment_dtype(task.model))
    for _ in map_units(Work("join", joining), task.layers, progress):
        pass
    shutil.rmtree(folder / SHARES, ignore_errors=True)


def shares(windows: int, count: int) -> list[_Share]:
    """Split windows into at most `count` shares of complete batches, as equal as possible."""
    batches = -(-windows // BATCH)
    count = min(count, batches)
    ends = [min(windows, BATCH * (batches * (i + 1) // count)) for i in range(count)]
    return [_Share(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class _Joining:
    """The task of joining the moments of all shares of a layer.

    dtype: of second moments on disk.
    """

    folder: Path
    shares: list[_Share]
    dtype: torch.dtype

    def __call__(self, layer: int, progress: Progress) -> None:
        del progress
        files = [layer_file(share.folder(self.folder), layer) for share in self.shares]
        if not is_kept(self.folder, layer):
            moments = joined([MomentsFile.at(file) for file in files])
            write_moments(moments, layer_file(self.folder, layer), self.dtype)
        for file in files:
            file.unlink(missing_ok=True)


def joined(parts: Sequence[MomentsFile]) -> Moments:
    """Return the moments of all tokens from those of consecutive parts.

    One statistic is read at a time, and at most one part per level of the tree of sums.
    """
    tokens = sum(part.tokens for part in parts)
    values: dict[Need, Tensor] = {}
    for need in parts[0].needs:
        if need[1] == "sample":
            rows = [(part.read((need[0], "places")), part.read(need)) for part in parts]
            values[need] = EvenSample.joined(rows, tokens).rows
        elif need[1] != "places":
            values[need] = _sum(parts, need).div_(tokens)
    return Moments(values, tokens)


def _sum(parts: Sequence[MomentsFile], need: Need) -> Tensor:
    """Return the sum of a statistic [...] over the tokens of all parts, added pairwise."""
    if len(parts) == 1:
        return parts[0].read(need).mul_(parts[0].tokens)
    middle = len(parts) // 2
    return _sum(parts[:middle], need).add_(_sum(parts[middle:], need))
