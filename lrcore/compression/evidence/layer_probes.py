"""Probes of a layer: truncate a slot and run the layers from there on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...layers.layer import Layer
from ...layers.spectra import Cost, Slot, Spectrum, by_part
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...system.cache import keep_value, read_as
from ...system.progress import Progress
from ..solve.factorize import Factorization
from .divergence import DensePredictions
from .head_differences import (
    ROUNDED_KEY,
    HeadDifferences,
    multiplies_states,
    rounds_products,
)
from .kind import cache_file
from .losses import BATCH

FORMAT = 5  # of the files on disk; increase it when the meaning of the contents changes


@dataclass(frozen=True)
class Shares:
    """Shares of the parameters, or of the cache if it stores latents, at which slots are probed.

    first: for each form. further: for forms that a plan may use.
    """

    first: tuple[float, ...]
    further: tuple[float, ...] = ()

    @property
    def all(self) -> tuple[float, ...]:
        return self.first + self.further


# One share is not enough: on a small model a single probe at 0.5 lost more than half of the gain.
SHARES = Shares((0.9, 0.5), (0.75, 0.3))
# A form that loses this many times as much as another form of its part, at both first shares, is
# not probed further: no plan with a budget of parameters uses it.
DOMINATED = 1.5
# A probe runs more batches until the standard error is at most this share of it. The total work of
# all probes is limited to WORK_RATIO times the multiplications of the calibration, but at least
# MIN_WORK multiplications, minutes on two cores. On models of a few million parameters, plans from
# 8 windows for all probes lost 5 to 27 % more than plans from up to 32.
ERROR = 0.1
WORK_RATIO, MIN_WORK = 10, 10**13
REFERENCES = 8  # minimum number of probes, spread over the layers, that run on all windows


@dataclass(frozen=True, eq=False)
class LayerProbes:
    """Measurements of a layer.

    loss: of the dense network, nats/token. values: by slot and rank, the divergence on each of the
    first windows [n], float64. references: slots and ranks that are measured on all windows, to
    estimate the other probes (see probe_windows.py).
    """

    loss: float
    values: dict[str, dict[int, Tensor]]
    references: list[tuple[str, int]]

    def to_dict(self) -> dict[str, Any]:
        """Return the probes as JSON-able values."""
        values = {
            name: [[rank, divergences.tolist()] for rank, divergences in ranks.items()]
            for name, ranks in self.values.items()
        }
        return {"loss": self.loss, "values": values, "references": self.references}

    @classmethod
    def from_dict(
        cls, stored: Mapping[str, Any], costs: Mapping[str, Cost], shares: Shares
    ) -> "LayerProbes":
        """Return the probes from the values of `to_dict`, after JSON.

        costs: of the slots of the layer, by name. Raises ValueError if they were not measured at
        the first shares.
        """
        values = {
            name: {
                int(rank): torch.tensor(divergences, dtype=torch.float64)
                for rank, divergences in ranks
            }
            for name, ranks in stored["values"].items()
        }
        references = [(name, rank) for name, rank in stored["references"]]
        first = (
            (name, rank)
            for name, cost in costs.items()
            for rank in probed_ranks(cost, shares.first)
        )
        tensors = [values[name][rank] for name, rank in (*first, *references)]
        tensors += [tensor for ranks in values.values() for tensor in ranks.values()]
        is_valid = all(tensor.ndim == 1 and len(tensor) for tensor in tensors)
        if values.keys() != costs.keys() or not is_valid:
            raise ValueError(stored)
        return cls(float(stored["loss"]), values, references)


@dataclass(eq=False)
class Probing:
    """The task of probing a layer; measurements are cached on disk.

    tokens [windows, length]. shares: at which slots are probed. The hidden states stay at the input
    of the layer that was probed last: pass the layers of a process in ascending order.
    """

    model: LoadedModel
    factors: Factorization
    tokens: Tensor
    shares: Shares = SHARES
    _reached: tuple[int, LayerStream] | None = field(default=None, init=False)

    def __call__(self, index: int, progress: Progress) -> LayerProbes:
        path = cache_file(
            "probes", self.factors, *probe_key(self.factors, self.tokens, self.shares), index
        )
        spectra = self.factors.spectra.items()
        costs = {name: s.cost for (layer, name), s in spectra if layer == index}
        cached = read_as(path, lambda value: LayerProbes.from_dict(value, costs, self.shares))
        if cached is not None:
            return cached
        result = self._measure(index, progress)
        keep_value(path, result.to_dict())
        return result

    @torch.inference_mode()
    def _measure(self, index: int, progress: Progress) -> LayerProbes:
        _, _, loss = self._dense
        spectra = {slot: s for slot, s in self.factors.spectra.items() if slot[0] == index}
        result = LayerProbes(loss, {name: {} for _, name in spectra}, [])
        for name in self._reference_slots(index, [name for _, name in spectra]):
            for rank in probed_ranks(spectra[index, name].cost, self.shares.first[-1:]):
                result.values[name][rank] = self._divergences(index, name, rank, 0.0)
                result.references.append((name, rank))

        def probe(slots: Mapping[Slot, Spectrum], shares: tuple[float, ...]) -> None:
            for (_, name), s in slots.items():
                for rank in probed_ranks(s.cost, shares):
                    if rank not in result.values[name]:
                        progress("probe", index, len(self.factors.layers))
                        result.values[name][rank] = self._divergences(index, name, rank, ERROR)

        probe(spectra, self.shares.first)
        if self.shares.further:
            for slots in undominated_forms(spectra, result.values, self.shares.first):
                probe(slots, self.shares.further)
        return result

    def _reference_slots(self, index: int, names: list[str]) -> list[str]:
        """Return the slots that are measured on all windows; they vary from layer to layer."""
        count = min(len(names), ceil(REFERENCES / len(self.factors.layers)))
        return [names[(index + i) % len(names)] for i in range(count)]

    def _divergences(self, index: int, name: str, rank: int, error: float) -> Tensor:
        """Return the divergences with a slot truncated, by window.

        All windows are measured if the error is 0.
        """
        factor = self.factors.layers[index][name]
        return self.divergences(
            index, lambda layer: factor.truncate(layer, rank), error, may_round=True
        )

    def divergences(
        self,
        index: int,
        change: Callable[[Layer], Layer],
        error: float,
        may_round: bool = False,
    ) -> Tensor:
        """Return the divergences with a changed layer, [windows], float64.

        error: the first windows are measured until the relative error is smaller; 0: all windows.
        may_round: whether layers may run in bfloat16, see head_differences.py.
        """
        network, predictions, _ = self._dense
        compare = predictions.divergences
        if may_round and isinstance(predictions, HeadDifferences):
            compare = predictions.rounded_divergences
        stream = self._stream_at(index)
        with changed_layer(network, index, change):
            hidden = stream.hidden if error == 0.0 else stream.hidden[: self._max_batches]
            return compare(network, index, hidden, error, stream.shared)

    @cached_property
    def _max_batches(self) -> int:
        """Maximum number of batches of a probe."""
        return max_windows(self.factors, self.tokens, self.shares) // BATCH

    @cached_property
    def _dense(self) -> tuple[PreTrainedModel, DensePredictions, float]:
        """A network to truncate, predictions and loss of the dense network; computed once."""
        network = clone(self.model.network)
        dense = clone(network)
        is_rounded = rounds_products(self.factors) and multiplies_states(dense, self.tokens)
        kind = HeadDifferences if is_rounded else DensePredictions
        predictions = kind(dense, self.tokens)
        return network, predictions, predictions.mean_loss()

    def _stream_at(self, index: int) -> LayerStream:
        """Return the stream of the windows at the input of a layer."""
        if self._reached is None or self._reached[0] > index:
            self._reached = 0, LayerStream(self._dense[0], self.tokens, BATCH)
        first, stream = self._reached
        for layer in range(first, index):
            stream.run(layer)
        self._reached = index, stream
        return stream


@contextmanager
def changed_layer(
    network: PreTrainedModel, index: int, change: Callable[[Layer], Layer]
) -> Iterator[None]:
    """Replace layer `index` of the network by the result of `change`, inside a `with` block."""
    layers = decoder_layers(network)
    dense = layers[index]
    layers[index] = clone(dense)
    try:
        write_layer(network, change(read_exact(network, index)))
        yield
    finally:
        layers[index] = dense


def max_windows(factors: Factorization, tokens: Tensor, shares: Shares = SHARES) -> int:
    """Return how many windows of tokens [windows, length] a probe may run: complete batches.

    All probes together stay within the work of WORK_RATIO and MIN_WORK. The probe of a slot runs
    the layers from that of the slot on, and the output head.
    """
    shape, length = factors.shape, tokens.shape[1]
    passes = sum(
        len(probed_ranks(s.cost, shares.all)) * (shape.layers - layer) / shape.layers
        for (layer, _), s in factors.spectra.items()
    )
    probes = sum(len(probed_ranks(s.cost, shares.all)) for s in factors.spectra.values())
    window_work = length * (passes * shape.decoder_linear + probes * shape.head_parameters)
    calibration_work = shape.decoder_linear * factors.calibration.tokens.numel()
    max_work = max(WORK_RATIO * calibration_work, MIN_WORK)
    batches = int(max_work / (BATCH * window_work)) if window_work else 1
    return BATCH * max(batches, 1)


def probe_key(factors: Factorization, tokens: Tensor, shares: Shares = SHARES) -> tuple[Any, ...]:
    """Return what the measurements depend on besides the factors; tokens [windows, length]."""
    limits = (DOMINATED, ERROR, WORK_RATIO, MIN_WORK)
    products = ROUNDED_KEY if rounds_products(factors) else ()
    return FORMAT, shares.first, shares.further, *limits, REFERENCES, tokens.tolist(), *products


def probed_ranks(cost: Cost, shares: tuple[float, ...] = SHARES.all) -> list[int]:
    """Return the ranks whose prices are nearest to the shares of the dense price, descending.

    The price is the number of parameters, or the size of the cache for cached latents. Duplicates
    are removed.
    """
    ranks = cost.ranks()[:-1]
    if not ranks:
        return []
    price, dense = (cost.kv, cost.kv_dense) if cost.latent else (cost.parameters, cost.dense)

    def nearest(share: float) -> int:
        return min(ranks, key=lambda rank: abs(price(rank) - share * dense))

    return sorted({nearest(share) for share in shares}, reverse=True)


def undominated_forms(
    spectra: Mapping[Slot, Spectrum],
    values: Mapping[str, Mapping[int, Tensor]],
    shares: tuple[float, ...],
) -> Iterator[dict[Slot, Spectrum]]:
    """Yield the slots of each form that is not DOMINATED by another form of the same part.

    values: by slot name and rank, the divergences [n] at the shares.
    """
    for forms in by_part(spectra).values():
        losses = [_summed_losses(slots, values, shares) for slots in forms.values()]
        for slots, form_losses in zip(forms.values(), losses, strict=True):
            if not any((form_losses > DOMINATED * bound).all() for bound in losses):
                yield slots


def _summed_losses(
    slots: Mapping[Slot, Spectrum],
    values: Mapping[str, Mapping[int, Tensor]],
    shares: tuple[float, ...],
) -> Tensor:
    """Return the sum over slots of the mean divergence at each of the shares, [shares]."""
    sums = torch.zeros(len(shares), dtype=torch.float64)
    for (_, name), s in slots.items():
        for number, share in enumerate(shares):
            for rank in probed_ranks(s.cost, (share,)):
                sums[number] += values[name][rank].mean()
    return sums
