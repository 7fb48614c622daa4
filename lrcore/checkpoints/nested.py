"""Nested checkpoints: a folder from which models of several ratios are cut when loading.

    nested.json          format, and ratio and report of each cut, by ascending ratio
    nested.safetensors   pairs of matrices that are dense at the smallest ratio
    the other files      the checkpoint of the smallest ratio

The pair of a matrix is stored at the largest rank below full of all cuts, in order of importance:
its first r rows and columns are the pair of rank r. So a cut computes nothing and refits nothing.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from ..layers.layer import Layer, LowRank, Projection
from ..layers.spectra import Slot
from ..models.architectures import decoder_layers
from ..models.layers import read_layer, write_layer
from ..models.load import LoadedModel
from ..models.weights import check_complete, file_hash, read_json
from ..recipes.history import Compressed, SlotRank, last_step
from ..recipes.provenance import Provenance
from ..system.as_json import json_text
from ..system.errors import InputError
from ..system.tensor_files import write_tensors

CUTS, PAIRS = "nested.json", "nested.safetensors"
FORMAT = 1  # of nested.json


@dataclass(frozen=True)
class Cut:
    """A ratio, and the provenance of the model that is cut to it, ranks included."""

    ratio: float
    provenance: Provenance

    @property
    def ranks(self) -> tuple[SlotRank, ...]:
        """A row per slot; the ranks never grow with the ratio."""
        step = last_step(self.provenance.history, Compressed)
        return () if step is None else step.ranks


@dataclass(frozen=True, eq=False)
class Nested:
    """A compressed model that can be cut to larger ratios; `save` writes it as one folder.

    model: the model of the smallest ratio. cuts: by ascending ratio, that of `model` first. pairs:
    of the slots that are dense in `model` and not in all cuts, at their largest rank.
    """

    model: LoadedModel
    cuts: Sequence[Cut]
    pairs: Mapping[Slot, LowRank]


def write_nested(nested: Nested, folder: Path, check: Callable[[str, Tensor], None]) -> None:
    """Write what a checkpoint folder lacks to be a nested checkpoint.

    check(name, tensor [...]): called before a tensor is written.
    """
    cuts = [{"ratio": cut.ratio, "report": cut.provenance.to_dict()} for cut in nested.cuts]
    text = json_text({"format": FORMAT, "cuts": cuts}, indent=2) + "\n"
    (folder / CUTS).write_text(text, encoding="utf-8")
    tensors: dict[str, Tensor] = {}
    for slot, pair in nested.pairs.items():
        assert isinstance(pair.down, Tensor)
        assert isinstance(pair.up, Tensor)
        tensors |= dict(zip(_names(slot), (pair.down, pair.up), strict=True))
    write_tensors(folder / PAIRS, tensors, {"format": "pt"}, check)


def cut_model(model: LoadedModel, ratio: float | None = None) -> LoadedModel:
    """Return a model, loaded from a nested checkpoint, cut to the next ratio of a cut >= `ratio`.

    The network is changed in place. None: the model as it is.

    Raises InputError if the model has no nested checkpoint, if no cut removes that much, and for
    damaged files.
    """
    if ratio is None:
        return model
    cuts = _read_cuts(model)
    fitting = [cut for cut in cuts if cut.ratio >= ratio - 1e-9]
    if not fitting or ratio < cuts[0].ratio - 1e-9:
        raise InputError(
            f"'{model.folder}' can be cut to ratios from {cuts[0].ratio:g} to {cuts[-1].ratio:g}, "
            f"got {ratio:g}."
        )
    cut = fitting[0]
    if cut is cuts[0]:
        return model
    file = model.folder / PAIRS
    check_complete(file)
    try:
        _cut_layers(model.network, cut.ranks, load_file(file))
    except (LookupError, RuntimeError) as error:
        raise InputError(
            f"'{file}' does not match the checkpoint ({error!r}). Copy the folder again."
        ) from error
    parts = (model.fingerprint, file_hash(model.folder / CUTS), file_hash(file), f"{cut.ratio:g}")
    provenance = cut.provenance
    return replace(
        model,
        fingerprint=hashlib.sha256(" ".join(parts).encode()).hexdigest(),
        history=provenance.history,
        base=provenance.base,
        account=provenance.account,
    )


def _read_cuts(model: LoadedModel) -> Sequence[Cut]:
    """Return the cuts of a model's folder. Raises InputError as `cut_model` does."""
    path = model.folder / CUTS
    if not path.is_file():
        raise InputError(
            f"'{model.name}' is not a nested checkpoint, so it cannot be cut to a ratio. Load it "
            "without a ratio, or compress the model with --nested."
        )
    values = read_json(path)
    if values.get("format") != FORMAT or not values.get("cuts"):
        raise InputError(
            f"'{path}' has format {values.get('format')!r} or no cuts, but this version reads "
            f"format {FORMAT}. Use the version that wrote it, or copy the folder again."
        )
    try:
        return [Cut(c["ratio"], Provenance.from_dict(c["report"])) for c in values["cuts"]]
    except (LookupError, TypeError) as error:
        raise InputError(
            f"The cuts in '{path}' cannot be read ({error!r}). Copy the folder again."
        ) from error


def _cut_layers(
    network: PreTrainedModel, ranks: Sequence[SlotRank], tensors: Mapping[str, Tensor]
) -> None:
    """Cut the pairs of all layers to their ranks. tensors: the stored pairs of dense matrices."""
    for index in range(len(decoder_layers(network))):
        layer = read_layer(network, index)
        below = [row for row in ranks if row.layer == index and row.rank < row.full]
        changed = {row.component: _cut_projection(layer, row, tensors) for row in below}
        write_layer(network, layer.with_matrices(**changed))


def _cut_projection(layer: Layer, row: SlotRank, tensors: Mapping[str, Tensor]) -> Projection:
    """Return the pair of a slot at its rank, in new memory."""
    dense = layer.matrices()[row.component]
    if isinstance(dense, LowRank):
        down, up = dense.down, dense.up
        assert isinstance(down, Tensor)
        assert isinstance(up, Tensor)
    else:
        down, up = (tensors[n].to(dense.weight) for n in _names((row.layer, row.component)))
    return LowRank(down[: row.rank].clone(), up[:, : row.rank].clone(), dense.bias)


def _names(slot: Slot) -> tuple[str, str]:
    """Return the names of the stored pair of a slot: down and up."""
    layer, name = slot
    return f"{layer}.{name}.down", f"{layer}.{name}.up"
