"""Measuring the probes of one layer: truncate one slot alone, and run the layers from there on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...alternatives import by_part
from ...cache import keep_value, read_as
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_exact, write_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...progress import Progress
from ...spectra import Cost, Slot, Spectrum
from ..factorise import Factorisation
from .cache import cache_file
from .divergence import DensePredictions
from .losses import BATCH

FORMAT = 5  # of the files on disk; increase it whenever what is measured changes its meaning
# Shares that are probed, of the parameters, or of the cache where it holds latents: of every form,
# and of those that a plan may take. One is too few: on a small model a single probe at 0.5 cost
# more than half of the gain.
FIRST, THEN = (0.9, 0.5), (0.75, 0.3)
KEEP = FIRST + THEN
# A form that loses so many times as much as another form of its part, at both of the first shares,
# is not probed further: no plan by parameters takes it.
DOMINATED = 1.5
# A probe takes more batches of windows until its standard error is at most this share of it, or
# they are as many as all probes together may run: TIMES the multiplications of calibrating, or EASY
# of them, minutes on two cores, where that is more. On models of a few million parameters, plans
# from 8 windows everywhere lost 5 to 27 % more than those from up to 32.
ERROR = 0.1
TIMES, EASY = 10, 10**13
REFERENCES = 8  # at least so many probes, spread over the layers, are measured on all windows


@dataclass(frozen=True, eq=False)
class LayerProbes:
    """What was measured of one layer.

    loss: of the dense network, nats/token. values: by slot and rank, the divergence on each of the
    first windows [n], float64. references: slots and ranks measured on all windows for the sake of
    the others, see few_windows.py.
    """

    loss: float
    values: dict[str, dict[int, Tensor]]
    references: list[tuple[str, int]]

    def plain(self) -> dict[str, Any]:
        """JSON-able."""
        values = {
            name: [[rank, own.tolist()] for rank, own in ranks.items()]
            for name, ranks in self.values.items()
        }
        return {"loss": self.loss, "values": values, "references": self.references}

    @classmethod
    def read(cls, kept: Mapping[str, Any], costs: Mapping[str, Cost]) -> "LayerProbes":
        """The inverse of `plain`, after JSON. costs: of the slots of the layer by name. Raises
        ValueError where they were not measured at the first ranks.
        """
        values = {
            name: {int(rank): torch.tensor(own, dtype=torch.float64) for rank, own in ranks}
            for name, ranks in kept["values"].items()
        }
        references = [(name, rank) for name, rank in kept["references"]]
        first = ((name, rank) for name, cost in costs.items() for rank in probed_ranks(cost, FIRST))
        measured = [values[name][rank] for name, rank in (*first, *references)]
        every = [*measured, *(one for ranks in values.values() for one in ranks.values())]
        if values.keys() != costs.keys() or not all(one.ndim == 1 and len(one) for one in every):
            raise ValueError(kept)
        return cls(float(kept["loss"]), values, references)


@dataclass(eq=False)
class Probing:
    """The task of probing one layer, whose measurements are kept on disk.

    tokens [windows, length]. The windows wait at the input of the layer that was probed last: give
    a process its layers in ascending order.
    """

    model: LoadedModel
    factors: Factorisation
    tokens: Tensor
    _reached: tuple[int, LayerStream] | None = field(default=None, init=False)

    def __call__(self, index: int, progress: Progress) -> LayerProbes:
        path = cache_file("probes", self.factors, *key(self.tokens), index)
        spectra = self.factors.spectra.items()
        costs = {name: one.cost for (layer, name), one in spectra if layer == index}
        if (kept := read_as(path, lambda value: LayerProbes.read(value, costs))) is not None:
            return kept
        result = self._measure(index, progress)
        keep_value(path, result.plain())
        return result

    @torch.inference_mode()
    def _measure(self, index: int, progress: Progress) -> LayerProbes:
        loss = self._dense[2]
        spectra = {slot: s for slot, s in self.factors.spectra.items() if slot[0] == index}
        result = LayerProbes(loss, {name: {} for _, name in spectra}, [])
        for name in self._whole(index, [name for _, name in spectra]):
            for rank in probed_ranks(spectra[index, name].cost, FIRST[1:]):
                result.values[name][rank] = self._divergences(index, name, rank, 0.0)
                result.references.append((name, rank))

        def probe(slots: Mapping[Slot, Spectrum], shares: tuple[float, ...]) -> None:
            for (_, name), s in slots.items():
                for rank in probed_ranks(s.cost, shares):
                    if rank not in result.values[name]:
                        progress("probe", index, len(self.factors.layers))
                        result.values[name][rank] = self._divergences(index, name, rank, ERROR)

        probe(spectra, FIRST)
        for slots in worthwhile(spectra, result.values):
            probe(slots, THEN)
        return result

    def _whole(self, index: int, names: list[str]) -> list[str]:
        """Slots of a layer that are measured on all windows, other ones in each layer."""
        count = min(len(names), ceil(REFERENCES / len(self.factors.layers)))
        return [names[(index + i) % len(names)] for i in range(count)]

    def _divergences(self, index: int, name: str, rank: int, error: float) -> Tensor:
        """With one slot truncated, by window; of all windows where the error is 0."""
        network, predictions, _ = self._dense
        stream, layers = self._at(index), decoder_layers(network)
        dense, factor = layers[index], self.factors.layers[index][name]
        layers[index] = clone(dense)
        try:
            write_layer(network, factor.truncate(read_exact(network, index), rank))
            hidden = stream.hidden if error == 0.0 else stream.hidden[: self._most]
            return predictions.divergences(network, index, hidden, error, stream.shared)
        finally:
            layers[index] = dense

    @cached_property
    def _most(self) -> int:
        """Batches of a probe, at most."""
        return most_windows(self.factors, self.tokens) // BATCH

    @cached_property
    def _dense(self) -> tuple[PreTrainedModel, DensePredictions, float]:
        """A network to truncate, what the dense one predicts, and its loss; made once."""
        network = clone(self.model.network)
        predictions = DensePredictions(clone(network), self.tokens)
        return network, predictions, predictions.mean_loss()

    def _at(self, index: int) -> LayerStream:
        """The windows at the input of a layer."""
        if self._reached is None or self._reached[0] > index:
            self._reached = 0, LayerStream(self._dense[0], self.tokens, BATCH)
        first, stream = self._reached
        for layer in range(first, index):
            stream.run(layer)
        self._reached = index, stream
        return stream


def most_windows(factors: Factorisation, tokens: Tensor) -> int:
    """How many of the windows, tokens [windows, length], a probe may run: whole batches, see
    TIMES.
    """
    shape, length = factors.shape, tokens.shape[1]
    layers = sum(
        len(probed_ranks(s.cost)) * (shape.layers - layer) / shape.layers
        for (layer, _), s in factors.spectra.items()
    )
    probes = sum(len(probed_ranks(s.cost)) for s in factors.spectra.values())
    window = length * (layers * shape.decoder_linear + probes * shape.head_parameters)
    calibrating = shape.decoder_linear * factors.calibration.tokens.numel()
    batches = int(max(TIMES * calibrating, EASY) / (BATCH * window)) if window else 1
    return BATCH * max(batches, 1)


def key(tokens: Tensor) -> tuple[Any, ...]:
    """What the measurements depend on besides the factors; tokens [windows, length]."""
    return FORMAT, FIRST, THEN, DOMINATED, ERROR, TIMES, EASY, REFERENCES, tokens.tolist()


def probed_ranks(cost: Cost, shares: tuple[float, ...] = KEEP) -> list[int]:
    """The ranks whose parameters, of cached latents: whose cache, come nearest to the shares,
    without duplicates, descending.
    """
    ranks = cost.ranks()[:-1]
    if not ranks:
        return []
    price, dense = (cost.kv, cost.kv_dense) if cost.latent else (cost.parameters, cost.dense)

    def nearest(keep: float) -> int:
        return min(ranks, key=lambda rank: abs(price(rank) - keep * dense))

    return sorted({nearest(keep) for keep in shares}, reverse=True)


def worthwhile(
    spectra: Mapping[Slot, Spectrum], values: Mapping[str, Mapping[int, Tensor]]
) -> Iterator[dict[Slot, Spectrum]]:
    """The slots of each form that is not DOMINATED by another form of its part, by what was
    measured of its slots at the first shares: {rank: [n]} by name.
    """
    for forms in by_part(spectra).values():
        lost = [_lost(slots, values) for slots in forms.values()]
        for slots, own in zip(forms.values(), lost, strict=True):
            if not any((own > DOMINATED * other).all() for other in lost):
                yield slots


def _lost(slots: Mapping[Slot, Spectrum], values: Mapping[str, Mapping[int, Tensor]]) -> Tensor:
    """The sum over slots of the mean divergence at each of the first shares, [shares]."""
    sums = torch.zeros(len(FIRST), dtype=torch.float64)
    for (_, name), s in slots.items():
        for number, share in enumerate(FIRST):
            for rank in probed_ranks(s.cost, (share,)):
                sums[number] += values[name][rank].mean()
    return sums
