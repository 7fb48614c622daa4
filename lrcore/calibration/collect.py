"""Moments of a model on windows of tokens, collected layer by layer into files.

Here, all windows pass through one layer after another. In a cluster each worker has a share of the
windows, whose moments wait in files beside those of the whole; then the shares of each layer are
joined. Products are formed of the same batches and added in float64, so that only the rounding of
the sums differs.
"""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..cache import trim
from ..experts import SAMPLE
from ..files import writing
from ..models.architectures import decoder_layers
from ..models.layers import clone
from ..models.load import LoadedModel
from ..models.read_ahead import reading_ahead
from ..models.stream import BATCH, LayerStream
from ..progress import Progress
from ..statistics import EvenSample, Moments, Need
from ..units import Work, each, workers
from .layouts import activation_layout
from .moment_files import MomentsFile, is_kept, layer_file, write_moments
from .working_memory import check_calibration

SHARES = "shares"  # folder beside the layers


def collect(
    model: LoadedModel, tokens: Tensor, needs: frozenset[Need], folder: Path, progress: Progress
) -> None:
    """Run the windows [n, t] through the model; write the moments of layers that are not in the
    folder, or not as this layer has them.

    Raises Shortage before any layer is run where that takes more memory than is free.
    """
    layers = len(decoder_layers(model.network))
    lacking = missing_in(model, needs, folder, range(layers))
    if lacking:
        _delete(layer_file(folder, layer) for layer in lacking)
        doing = _Passing(model, tokens, needs, folder, lacking)
        if workers().apart:
            _collect_in_shares(doing, progress)
        else:
            windows, length = tokens.shape
            check_calibration(model, windows, length, needs)
            doing.run(_Share(0, len(tokens)), folder, progress)
        trim()
    progress("calibrate", layers, layers)


def missing_in(
    model: LoadedModel, needs: frozenset[Need], folder: Path, wanted: Sequence[int]
) -> list[int]:
    """Those of some layers whose moments are not in a folder, or not as the layer has them."""
    layouts = {layer: activation_layout(model.network, layer, needs) for layer in wanted}
    return [layer for layer, one in layouts.items() if not is_kept(folder, layer, layout=one)]


def _delete(files: Iterable[Path]) -> None:
    """Damaged ones, for a file that is there counts as written."""
    for file in files:
        if file.is_file():
            with writing(file):
                file.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Share:
    """The windows from `begin` up to `end`."""

    begin: int
    end: int

    def folder(self, whole: Path) -> Path:
        """Where its moments wait to be joined."""
        return whole / SHARES / f"{self.begin}-{self.end}"


@dataclass(frozen=True, eq=False)
class _Passing:
    """The task of calibrating: the moments of the layers in `wanted`, of a share of the windows."""

    model: LoadedModel
    tokens: Tensor
    needs: frozenset[Need]
    folder: Path
    wanted: Sequence[int]

    def __call__(self, share: _Share, progress: Progress) -> None:
        self.run(share, share.folder(self.folder), progress)

    def run(self, share: _Share, folder: Path, progress: Progress) -> None:
        """Write the moments that are not in the folder yet."""
        missing = missing_in(self.model, self.needs, folder, self.wanted)
        if not missing:
            return
        own, layers = self.tokens[share.begin : share.end], len(decoder_layers(self.model.network))
        first = share.begin * self.tokens.shape[1]
        stream = LayerStream(clone(self.model.network), own, first=first)
        with reading_ahead(stream.network):
            for layer in range(missing[-1] + 1):
                progress("calibrate", layer, layers)
                moments = stream.run(layer, self.needs if layer in missing else ())
                if moments is not None:
                    write_moments(moments, layer_file(folder, layer), self._stored(folder))
                del moments  # before the next layer's are made

    def _stored(self, folder: Path) -> torch.dtype:
        """Second moments of a share, or of a float64 model, are kept as they were summed."""
        return kept_dtype(self.model) if folder == self.folder else torch.float64


def kept_dtype(model: LoadedModel) -> torch.dtype:
    """That of second moments on disk: of the products that they are sums of."""
    kept: torch.dtype = torch.promote_types(model.network.dtype, torch.float32)
    return kept


# --- in a cluster ---


def _collect_in_shares(doing: _Passing, progress: Progress) -> None:
    """Collect by workers, of shares of the windows, and join them.

    What a killed command has left of it is not done again with as many workers.
    """
    folder, parts = doing.folder, shares(len(doing.tokens), workers().count)
    places = {(tap, "places") for tap, statistic in {*doing.needs, SAMPLE} if statistic == "sample"}
    doing = replace(doing, needs=doing.needs | places)
    for _ in each(Work("calibrate", doing), parts, progress):
        pass
    for _ in each(
        Work("join", _Joining(folder, parts, kept_dtype(doing.model))), doing.wanted, progress
    ):
        pass
    shutil.rmtree(folder / SHARES, ignore_errors=True)


def shares(windows: int, count: int) -> list[_Share]:
    """Windows in at most `count` shares of whole batches, as equal as they can be."""
    batches = -(-windows // BATCH)
    count = min(count, batches)
    ends = [min(windows, BATCH * (batches * (i + 1) // count)) for i in range(count)]
    return [_Share(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class _Joining:
    """The task of joining: one layer's moments of all shares become those of the whole."""

    folder: Path
    shares: list[_Share]
    dtype: torch.dtype  # of second moments on disk

    def __call__(self, layer: int, progress: Progress) -> None:
        del progress
        files = [layer_file(share.folder(self.folder), layer) for share in self.shares]
        if not is_kept(self.folder, layer):
            moments = joined([MomentsFile.at(file) for file in files])
            write_moments(moments, layer_file(self.folder, layer), self.dtype)
        for file in files:
            file.unlink(missing_ok=True)


def joined(parts: Sequence[MomentsFile]) -> Moments:
    """The moments of all tokens from those of consecutive parts of them.

    One statistic is read at a time, and of it as many parts as a tree of sums has levels.
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
    """Sum of a statistic [...] over the tokens of all parts, pairwise."""
    if len(parts) == 1:
        return parts[0].read(need).mul_(parts[0].tokens)
    middle = len(parts) // 2
    return _sum(parts[:middle], need).add_(_sum(parts[middle:], need))
