"""Evidence "probes": the predicted increase in loss of every slot at every rank. Ours; in no paper.

The loss curves of the slots have different units (scores, outputs of attention, outputs of the
MLP). Probes give them one, nats/token: truncate one slot alone to a few ranks and measure how much
the loss of some calibration tokens increases. Each curve is then scaled to pass through its probes.
Layers before the slot are not run again.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...cache import keep_value, read_value
from ...evidence import LossCurve, Probes
from ...models.architectures import decoder_layers
from ...models.layers import clone, read_layer, write_layer
from ...models.load import LoadedModel
from ...models.stream import LayerStream
from ...progress import Progress, silent
from ...spectra import Cost, Slot, Spectrum
from ..factorise import Factorisation
from .cache import cache_file
from .kind import EvidenceKind
from .losses import BATCH, LENGTH, WINDOWS, mean_loss

# Shares of the parameters that are probed. One is too few: on a small model a single probe at 0.5
# cost more than half of the gain. Budgets of 10 % put most slots near the first.
KEEP = (0.95, 0.9, 0.75, 0.5, 0.3)
# A smaller increase is noise of the sample; it also keeps the logarithm finite where truncating a
# slot changes nothing.
LEAST_RISE = 1e-6
# Below the lowest probed rank nothing was measured, and losses compound there: the curve grows with
# this power of the rank.
STEEP = 2.0


def probe(
    model: LoadedModel, factors: Factorisation, progress: Progress | None = None
) -> Factorisation:
    """The factorisation with evidence "probes", for the policies `probed` and `sensitivity` and for
    predicted perplexities.
    """
    return factors.with_measurement("probes", measure(model, factors, progress or silent))


def measure(model: LoadedModel, factors: Factorisation, progress: Progress) -> Probes:
    """Slots x 5 short evaluations on the first 32 calibration windows, cut to 128 tokens; kept on
    disk beside the calibration.
    """
    tokens = factors.calibration.tokens[:WINDOWS, :LENGTH]
    path = cache_file("probes", factors, KEEP, list(tokens.shape))
    if (kept := read_value(path)) is not None:
        base, points = _read(kept)
    else:
        base, points = measure_rises(model.network, factors, tokens, progress)
        keep_value(path, _plain(base, points))
    curves = {slot: loss_curve(s, points[slot]) for slot, s in factors.spectra.items()}
    return Probes(base, curves)


# probed (rank, increase in loss in nats/token), ranks descending
Points = dict[Slot, list[tuple[int, float]]]


@torch.inference_mode()
def measure_rises(
    network: PreTrainedModel, factors: Factorisation, tokens: Tensor, progress: Progress
) -> tuple[float, Points]:
    """Mean loss (nats/token) of the dense network on tokens [windows, length], and the increase for
    each slot alone at each probed rank.
    """
    network = clone(network)
    stream, layers = LayerStream(network, tokens, BATCH), decoder_layers(network)
    batches = tokens.to(network.device).split(BATCH)
    base, points = mean_loss(network, 0, stream.hidden, batches), {}
    for index, layer_factors in enumerate(factors.layers):
        progress("probe", index, len(factors.layers))
        dense = layers[index]
        for name, factor in layer_factors.items():
            rises = []
            for rank in probed_ranks(factor.cost):
                layers[index] = clone(dense)
                write_layer(network, factor.truncate(read_layer(network, index), rank))
                rises.append((rank, mean_loss(network, index, stream.hidden, batches) - base))
                layers[index] = dense
            points[index, name] = rises
        stream.run(index)
    progress("probe", len(factors.layers), len(factors.layers))
    return base, points


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


def loss_curve(s: Spectrum, points: list[tuple[int, float]]) -> LossCurve:
    """Predicted increase in loss (nats/token) at every rank of `s.cost.ranks()`, [ranks], float64,
    falling to 0 at full rank.

    The tail of the spectrum times a scale whose logarithm is interpolated over rank between the
    probes. The scale is constant above the highest probed rank, and grows as
    (lowest probed rank / rank) ** STEEP below the lowest. The result is then made monotonic.
    """
    ranks = s.cost.ranks()
    grid = torch.tensor(ranks, dtype=torch.float64)
    tails = torch.tensor([s.tail(r) for r in ranks], dtype=torch.float64)
    floor = float(tails.max()) * 1e-12 or 1.0
    at = torch.tensor(
        [[r, max(rise, LEAST_RISE) / max(s.tail(r), floor)] for r, rise in sorted(points)],
        dtype=torch.float64,
    )
    if not len(at):
        return LossCurve(ranks, torch.zeros_like(grid))
    curve = (
        tails
        * interpolate(grid, at[:, 0].contiguous(), at[:, 1].log()).exp()
        * (at[0, 0] / grid).clamp_min(1) ** STEEP
    )
    curve[-1] = 0
    return LossCurve(ranks, curve.flip(0).cummax(0).values.flip(0))


def interpolate(x: Tensor, known_x: Tensor, known_y: Tensor) -> Tensor:
    """Piecewise linear through the known points, constant outside; equivalent to `numpy.interp`.

    x [n], known_x [k] ascending, known_y [k] -> [n].
    """
    if len(known_x) == 1:
        return known_y.expand_as(x)
    right = torch.searchsorted(known_x, x).clamp(1, len(known_x) - 1)
    low, high = known_x[right - 1], known_x[right]
    share = ((x - low) / (high - low)).clamp(0, 1)
    return known_y[right - 1] + share * (known_y[right] - known_y[right - 1])


def _plain(base: float, points: Points) -> dict[str, Any]:
    return {"base": base, "points": [[*slot, rises] for slot, rises in points.items()]}


def _read(kept: Mapping[str, Any]) -> tuple[float, Points]:
    """The inverse of `_plain`, after JSON."""
    return kept["base"], {
        (layer, name): [tuple(rise) for rise in rises] for layer, name, rises in kept["points"]
    }


KIND = EvidenceKind(
    "probes",
    "Predicted increase in loss of every slot at every rank; slots x 5 short evaluations, kept on "
    "disk.",
    lambda model, factors, recipe, progress: measure(model, factors, progress),
)
