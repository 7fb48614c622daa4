"""Evidence "quantization": the increase in loss by rounding each slot to few bits. Ours.

A slot is quantized by GPTQ in the moments of the calibration windows, and the divergence of the
model's predictions from those of the dense model is measured on the probing windows, as for the
probes: at full rank, and truncated to the first probed rank, where the divergence of the truncated
slot alone is subtracted. The errors of truncation and rounding are nearly uncorrelated, so their
increases add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...layers.forms import QUANTIZERS_REVISION, Quantized
from ...layers.layer import Layer, factor_matrices
from ...layers.obs import DAMPING
from ...layers.spectra import Cost, Slot, Spectrum
from ...layers.statistics import Moments
from ...methods import find_method
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_exact
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...ranks.quantization import BITS, GROUP, Quantization, QuantizedSlot, rounded_bytes
from ...recipes.recipe import Recipe
from ...system.cache import has_value, keep_value, read_as
from ...system.progress import Progress
from ...system.units import Work, map_units
from ..solve.factorize import Factorization
from ..solve.quantized_layer import input_moments, quantized_layer
from .kind import EvidenceKind, cache_file
from .layer_probes import (
    ERROR,
    SHARES,
    LayerProbes,
    Probing,
    changed_layer,
    max_windows,
    probe_key,
    probed_ranks,
    undominated_forms,
)
from .probe_windows import mean_and_error, select_windows, window_costs

FORMAT = 2  # of the files on disk; increase it when the meaning of the contents changes
# The error of 8 bits is below the noise of the probes. The steps of its grid are smaller than those
# of 4 bits by (2^4 - 1) / (2^8 - 1), and the increase falls with their square.
MEASURED, FROM_FOUR = BITS[1:], (15 / 255) ** 2
TOKENS = 2**15  # of the calibration windows (at least one window) that give the moments
MATRICES = frozenset({"q", "k", "v", "o", "gate", "up", "down"})  # with these names are quantized


def measure(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Quantization:
    """Return the measurements of all slots; those of each layer are cached on disk."""
    del recipe
    work = Work("probe", _Task(model, factors))
    slots: dict[Slot, QuantizedSlot] = {}
    layers = map_units(work, range(len(factors.layers)), progress)
    for index, layer in enumerate(layers):
        slots |= {(index, name): slot for name, slot in layer.items()}
    return Quantization(slots)


@dataclass(eq=False)
class _Task:
    """The task of measuring a layer, by its index; pass the layers of a process in order."""

    model: LoadedModel
    factors: Factorization
    _position: int = field(default=0, init=False)

    @torch.inference_mode()
    def __call__(self, index: int, progress: Progress) -> dict[str, QuantizedSlot]:
        path = _file(self.factors, index)
        result = read_as(path, _from_json)
        if result is None:
            result = self._measure(index, progress)
            keep_value(path, {name: asdict(slot) for name, slot in result.items()})
        return result

    def _measure(self, index: int, progress: Progress) -> dict[str, QuantizedSlot]:
        while self._position < index:
            self._stream.run(self._position)
            self._position += 1
        layer = _LayerTask(self._probing, self._stream, index, self._probing(index, progress))
        spectra = {slot: s for slot, s in self.factors.spectra.items() if slot[0] == index}
        result = {name: layer.without_rounding(name, s) for (_, name), s in spectra.items()}
        for form in undominated_forms(spectra, layer.probes.values, SHARES.first):
            for (_, name), s in form.items():
                progress("probe", index, len(self.factors.layers))
                if layer.matrices_of(name) and s.cost.copies == 1:
                    result[name] = layer.measure(name, s)
        return result

    @cached_property
    def _probing(self) -> Probing:
        return Probing(self.model, self.factors, select_windows(self.factors.calibration).probing)

    @cached_property
    def _stream(self) -> LayerStream:
        """The calibration windows at the input of layer `_position`."""
        tokens = self.factors.calibration.tokens
        return LayerStream(clone(self.model.network), tokens[: max(1, TOKENS // tokens.shape[1])])


@dataclass(eq=False)
class _LayerTask:
    """Measurements of a layer. stream: of the calibration windows, at the input of the layer."""

    probing: Probing
    stream: LayerStream
    index: int
    probes: LayerProbes
    _full: dict[frozenset[str], dict[int, float]] = field(default_factory=dict, init=False)

    @cached_property
    def _layer(self) -> Layer:
        return read_exact(self.stream.network, self.index)

    @cached_property
    def _moments(self) -> Moments:
        """Moments of the inputs of the projections in the dense layer."""
        names = MATRICES.intersection(self._layer.matrices())
        return input_moments(self.stream, self.index, names)

    def matrices_of(self, name: str) -> frozenset[str]:
        """Return the names of the matrices of a slot; empty if some of them are not quantized."""
        method = find_method(self.probing.factors.method)
        names = frozenset(method.matrices_of(name)).intersection(self._layer.matrices())
        return names if names <= MATRICES else frozenset()

    def without_rounding(self, name: str, s: Spectrum) -> QuantizedSlot:
        """Return the bytes of a slot that is not rounded."""
        rank = next(iter(probed_ranks(s.cost, SHARES.first)), 0)
        extra = self._extra(self._truncated(name, rank), 0, s.cost, rank) if rank else 0
        return QuantizedSlot(rank, {}, {}, {0: extra})

    def _truncated(self, name: str, rank: int) -> Layer:
        """Return the layer with a slot at a rank."""
        return self.probing.factors.layers[self.index][name].truncate(self._layer, rank)

    def measure(self, name: str, s: Spectrum) -> QuantizedSlot:
        """Return the measurements of a slot that can be rounded."""
        names = self.matrices_of(name)
        if names not in self._full:
            layers = [self._quantized(self._layer, names, bits) for bits in MEASURED]
            self._full[names] = _by_bits([self._increase(layer, None) for layer in layers])
        full = self._full[names]
        rank = next(iter(probed_ranks(s.cost, SHARES.first)), 0)
        if not rank:
            return QuantizedSlot(0, {}, full, {0: 0, **dict.fromkeys(BITS, 0)})
        small = self._truncated(name, rank)
        layers = [self._quantized(small, names, bits) for bits in MEASURED]
        truncated = self.probes.values[name][rank]
        measured = _by_bits([self._increase(layer, truncated) for layer in layers])
        # noise aside, no form loses less by rounding than the share of its numbers
        share = s.cost.parameters(rank) / s.cost.dense
        below = {bits: max(measured[bits], share * full[bits]) for bits in measured}
        extra = {
            bits: self._extra(layer, bits, s.cost, rank)
            for bits, layer in zip((0, *MEASURED), (small, *layers), strict=True)
        }
        return QuantizedSlot(rank, below, full, {8: extra[MEASURED[0]]} | extra)

    def _quantized(self, layer: Layer, names: frozenset[str], bits: int) -> Layer:
        """Return a layer with quantized projections, in the moments of its own inputs."""
        before, after = self._layer.matrices(), layer.matrices()
        sizes = [(p[name].weight.shape[1] for name in sorted(names)) for p in (before, after)]
        if [*sizes[0]] == [*sizes[1]]:  # a narrower output projection has other inputs
            return quantized_layer(layer, dict.fromkeys(names, bits), self._moments)
        with changed_layer(self.stream.network, self.index, lambda _: layer):
            moments = input_moments(self.stream, self.index, names)
        return quantized_layer(layer, dict.fromkeys(names, bits), moments)

    def _increase(self, layer: Layer, truncated: Tensor | None) -> float:
        """Return the increase in divergence by quantizing projections of a layer, >= 0.

        layer: with quantized projections. truncated: the divergences of the layer without the
        quantization, by window; None if they are 0.
        """
        values = self.probing.divergences(self.index, lambda _: layer, ERROR)
        if truncated is not None:
            count = min(len(values), len(truncated))
            values = values[:count] - truncated[:count]
        references = [self.probes.values[name][rank] for name, rank in self.probes.references]
        return max(0.0, mean_and_error(values, window_costs(references))[0])

    def _extra(self, layer: Layer, bits: int, cost: Cost, rank: int) -> int:
        """Return `QuantizedSlot.extra` from the tensors of a layer with the slot at this rank.

        At another rank, each quantized array can have another incomplete group and byte.
        """
        itemsize = self.probing.factors.shape.itemsize
        layers = decoder_layers(self.stream.network)
        dense = _bytes(layers[self.index])
        with changed_layer(self.stream.network, self.index, lambda _: layer):
            added = _bytes(layers[self.index]) - dense
        matrices = [m for p in layer.matrices().values() for m in factor_matrices(p)]
        incomplete = sum(isinstance(matrix, Quantized) for matrix in matrices) * (2 * itemsize + 1)
        formula = rounded_bytes(cost, rank, bits, itemsize) - cost.dense * itemsize
        return added - formula + incomplete


def _by_bits(increases: Sequence[float]) -> dict[int, float]:
    """Return the increases by bits, not below those of more bits; given those of MEASURED."""
    rising = dict(zip(MEASURED, accumulate(increases, max), strict=True))
    return {8: rising[4] * FROM_FOUR} | rising


def _bytes(module: nn.Module) -> int:
    """Return the bytes of the tensors of a module, shared ones once."""
    tensors = module.state_dict().items()  # offloaded tensors have no address
    return sum({tensor.data_ptr() or name: tensor.nbytes for name, tensor in tensors}.values())


def _file(factors: Factorization, index: int) -> Path:
    windows = select_windows(factors.calibration).probing
    constants = FORMAT, QUANTIZERS_REVISION, MEASURED, GROUP, DAMPING, TOKENS
    key = (*constants, *probe_key(factors, windows))
    return cache_file("probes", factors, "quantization", *key, index)


def _from_json(stored: Mapping[str, Any]) -> dict[str, QuantizedSlot]:
    """Return the measurements of a layer from the contents of its file."""

    def by_bits(values: Mapping[str, Any], kind: type) -> dict[int, Any]:
        return {int(bits): kind(value) for bits, value in values.items()}

    return {
        name: QuantizedSlot(
            int(slot["rank"]),
            by_bits(slot["below"], float),
            by_bits(slot["full"], float),
            by_bits(slot["extra"], int),
        )
        for name, slot in stored.items()
    }


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens`: each slot is measured in MEASURED bits at up to two ranks."""
    del recipe
    if all(has_value(_file(factors, index)) for index in range(len(factors.layers))):
        return 0.0
    layers = len(factors.layers)
    passes = sum(2 * len(MEASURED) * (layers - layer) / layers for layer, _ in factors.spectra)
    windows = select_windows(factors.calibration).probing
    return passes * windows[: max_windows(factors, windows)].numel()


KIND = EvidenceKind(
    "quantization",
    "Predicted increase in loss of every slot in few bits, for budget bytes; slots x 6 short "
    "evaluations, cached on disk.",
    measure,
    tokens=tokens_run,
)
