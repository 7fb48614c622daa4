"""Evidence "probes": the predicted increase in loss of every slot at every rank. Ours; in no paper.

The loss curves of the slots have different units (scores, outputs of attention, outputs of the
MLP). Probes give them one, nats/token: truncate one slot alone to a few ranks and measure how far
the model's predictions then are from the dense model's, on windows that the moments have not seen
(divergence.py). Each curve is scaled to its probes (curve.py). Layers before the slot are not run
again.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...cache import keep_value, read_value
from ...evidence import Probe, Probes
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_layer, write_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...progress import Progress, silent
from ...recipe import Recipe
from ...spectra import Cost, Slot
from ...units import Work, each
from ..factorise import Factorisation
from . import joint
from .cache import cache_file
from .curve import loss_curve
from .divergence import DensePredictions
from .kind import EvidenceKind
from .losses import BATCH
from .windows import windows_of

FORMAT = 3  # of the files on disk; increase it whenever what is measured changes its meaning
# Shares of the parameters that are probed. One is too few: on a small model a single probe at 0.5
# cost more than half of the gain. Budgets of 10 % put most slots near the first.
KEEP = (0.95, 0.9, 0.75, 0.5, 0.3)
# A probe takes more windows until its standard error is at most this share of it: what a slot loses
# at other ranks is interpolated with more error than that.
ERROR = 0.1


def probe(
    model: LoadedModel, factors: Factorisation, progress: Progress | None = None
) -> Factorisation:
    """The factorisation with evidence "probes", for the policies `probed` and `sensitivity` and for
    predicted perplexities.
    """
    return factors.with_measurement("probes", measure(model, factors, progress or silent))


def measure(model: LoadedModel, factors: Factorisation, progress: Progress) -> Probes:
    """Slots x 5 short evaluations on 8 windows of 128 tokens, and up to 32 where 8 say too little;
    kept on disk beside the calibration.
    """
    windows = windows_of(factors.calibration)
    tokens = windows.probing
    path = _file(factors, tokens)
    if (kept := read_value(path)) is not None:
        base, points = _read(kept)
    else:
        base, points = measure_divergences(model, factors, tokens, progress)
        keep_value(path, _plain(base, points))
    curves = {slot: loss_curve(s, points[slot]) for slot, s in factors.spectra.items()}
    return Probes(base, curves, points, windows.held_out)


def are_kept(factors: Factorisation) -> bool:
    """Whether the probes are on disk."""
    return _file(factors, windows_of(factors.calibration).probing).is_file()


def tokens_run(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`: a probe runs the layers from its own on; a few whole plans
    follow.
    """
    if are_kept(factors):
        return 0.0
    layers = len(factors.layers)
    passes = (
        len(probed_ranks(spectrum.cost)) * (layers - layer) / layers
        for (layer, _), spectrum in factors.spectra.items()
    )
    tokens = windows_of(factors.calibration).probing[:BATCH].numel()  # most probes need no more
    return tokens * sum(passes) + joint.tokens_run(factors, recipe)


def _file(factors: Factorisation, tokens: Tensor) -> Path:
    return cache_file("probes", factors, FORMAT, KEEP, ERROR, tokens.tolist())


Points = dict[Slot, list[Probe]]  # by slot, ranks descending


def measure_divergences(
    model: LoadedModel, factors: Factorisation, tokens: Tensor, progress: Progress
) -> tuple[float, Points]:
    """Mean loss (nats/token) of the dense network on tokens [windows, length], and the divergence
    from it for each slot alone at each probed rank.
    """
    work = Work("probe", _Probing(model, factors, tokens))
    losses, points = zip(*each(work, range(len(factors.layers)), progress), strict=True)
    return losses[0], {slot: own for layer in points for slot, own in layer.items()}


@dataclass(eq=False)
class _Probing:
    """The task of probing: the dense loss, and the probes of one layer's slots.

    The windows wait at the input of the layer that was probed last: give a process its layers in
    ascending order.
    """

    model: LoadedModel
    factors: Factorisation
    tokens: Tensor
    _reached: tuple[int, LayerStream] | None = field(default=None, init=False)

    @torch.inference_mode()
    def __call__(self, index: int, progress: Progress) -> tuple[float, Points]:
        del progress
        network, predictions, loss = self._dense
        stream, layers = self._at(index), decoder_layers(network)
        dense, points = layers[index], dict[Slot, list[Probe]]()
        for name, factor in self.factors.layers[index].items():
            points[index, name] = []
            for rank in probed_ranks(factor.cost):
                layers[index] = clone(dense)
                write_layer(network, factor.truncate(read_layer(network, index), rank))
                values = predictions.divergences(network, index, stream.hidden, ERROR)
                points[index, name].append(_probe(rank, values))
                layers[index] = dense
        return loss, points

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


def _probe(rank: int, divergences: Tensor) -> Probe:
    """Mean and standard error over windows [n]."""
    mean, count = float(divergences.mean()), len(divergences)
    error = float(divergences.std()) / count**0.5 if count > 1 else mean
    return Probe(rank, mean, error)


def probed_ranks(cost: Cost) -> list[int]:
    """The ranks whose parameters come nearest to the shares in KEEP, without duplicates,
    descending.
    """
    ranks = cost.ranks()[:-1]
    if not ranks:
        return []

    def nearest(keep: float) -> int:
        return min(ranks, key=lambda rank: abs(cost.parameters(rank) - keep * cost.dense))

    return sorted({nearest(keep) for keep in KEEP}, reverse=True)


def _plain(base: float, points: Points) -> dict[str, Any]:
    return {
        "base": base,
        "points": [[*slot, [astuple(probe) for probe in own]] for slot, own in points.items()],
    }


def _read(kept: Mapping[str, Any]) -> tuple[float, Points]:
    """The inverse of `_plain`, after JSON."""
    return kept["base"], {
        (layer, name): [Probe(*values) for values in own] for layer, name, own in kept["points"]
    }


def measure_together(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> Probes:
    """Probes, and what slots lose together under the recipe's passes."""
    probes = measure(model, factors, progress)
    probed = factors.with_measurement("probes", probes)
    return replace(probes, interaction=joint.measure_interaction(model, probed, recipe, progress))


KIND = EvidenceKind(
    "probes",
    "Predicted increase in loss of every slot at every rank; slots x 5 short evaluations, kept on "
    "disk.",
    measure_together,
    tokens=tokens_run,
)
