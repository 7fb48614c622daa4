"""Evidence "probes": the predicted increase in loss of every slot at every rank. Ours; in no paper.

The loss curves of the slots have different units (scores, outputs of attention, outputs of the
MLP). Probes give them one, nats/token: truncate one slot alone to a few ranks and measure how far
the model's predictions then are from the dense model's, on windows that the moments have not seen
(divergence.py). Each curve is scaled to its probes (curve.py). Layers before the slot are not run
again.
"""

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...cache import keep_value, read_value
from ...calibration.calibrate import Calibration
from ...evidence import Probe, Probes
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_layer, write_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...progress import Progress, silent
from ...spectra import Cost, Slot
from ..factorise import Factorisation
from .cache import cache_file
from .curve import loss_curve
from .divergence import DensePredictions
from .kind import EvidenceKind
from .losses import BATCH, LENGTH, WINDOWS

FORMAT = 2  # of the files on disk; increase it whenever what is measured changes its meaning
# Shares of the parameters that are probed. One is too few: on a small model a single probe at 0.5
# cost more than half of the gain. Budgets of 10 % put most slots near the first.
KEEP = (0.95, 0.9, 0.75, 0.5, 0.3)
# Where the text has fewer windows aside than this share of those wanted, a mean over them is noise.
ENOUGH = 0.5


def probe(
    model: LoadedModel, factors: Factorisation, progress: Progress | None = None
) -> Factorisation:
    """The factorisation with evidence "probes", for the policies `probed` and `sensitivity` and for
    predicted perplexities.
    """
    return factors.with_measurement("probes", measure(model, factors, progress or silent))


def measure(model: LoadedModel, factors: Factorisation, progress: Progress) -> Probes:
    """Slots x 5 short evaluations on at most 32 windows, cut to 128 tokens; kept on disk beside the
    calibration.
    """
    tokens, held_out = probing_windows(factors.calibration)
    path = cache_file("probes", factors, FORMAT, KEEP, tokens.tolist())
    if (kept := read_value(path)) is not None:
        base, points = _read(kept)
    else:
        base, points = measure_divergences(model.network, factors, tokens, progress)
        keep_value(path, _plain(base, points))
    curves = {slot: loss_curve(s, points[slot]) for slot, s in factors.spectra.items()}
    return Probes(base, curves, points, held_out)


def probing_windows(calibration: Calibration) -> tuple[Tensor, bool]:
    """The windows [n, length] that slots are probed on, and whether the moments have not seen them.

    As many as the calibration has, at most 32, of the same text; the calibration's own where too
    few others fit into it.
    """
    own = calibration.tokens[:WINDOWS, :LENGTH]
    aside = calibration.aside[:WINDOWS, :LENGTH]
    return (aside, True) if len(aside) >= ENOUGH * len(own) else (own, False)


Points = dict[Slot, list[Probe]]  # by slot, ranks descending


@torch.inference_mode()
def measure_divergences(
    network: PreTrainedModel, factors: Factorisation, tokens: Tensor, progress: Progress
) -> tuple[float, Points]:
    """Mean loss (nats/token) of the dense network on tokens [windows, length], and the divergence
    from it for each slot alone at each probed rank.
    """
    network = clone(network)
    dense_predictions = DensePredictions(clone(network), tokens)
    stream, layers = LayerStream(network, tokens, BATCH), decoder_layers(network)
    points: Points = {}
    for index, layer_factors in enumerate(factors.layers):
        progress("probe", index, len(factors.layers))
        dense = layers[index]
        for name, factor in layer_factors.items():
            points[index, name] = []
            for rank in probed_ranks(factor.cost):
                layers[index] = clone(dense)
                write_layer(network, factor.truncate(read_layer(network, index), rank))
                values = dense_predictions.divergences(network, index, stream.hidden)
                points[index, name].append(_probe(rank, values))
                layers[index] = dense
        stream.run(index)
    progress("probe", len(factors.layers), len(factors.layers))
    return dense_predictions.mean_loss(), points


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


KIND = EvidenceKind(
    "probes",
    "Predicted increase in loss of every slot at every rank; slots x 5 short evaluations, kept on "
    "disk.",
    lambda model, factors, recipe, progress: measure(model, factors, progress),
)
