"""Estimate of the memory that a factorization needs, from the shapes of a model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from ...layers.layer import ACROSS, Layer, Projection
from ...layers.statistics import OUTPUT_CURVATURES, SECOND
from ...methods import Method
from ...models.architectures import decoder_layers
from ...models.layers import layer_shapes
from ...models.load import LoadedModel
from ...system.hardware import hardware
from ...system.memory import megabytes, raise_unless_free
from ..calibration.working_memory import extent, tap_widths

FLOAT64 = 8  # bytes per number in each decomposition
REMEDY = "Choose a method that decomposes less, such as svd or a3, or a machine with more memory."


@dataclass(frozen=True)
class FactorMemory:
    """Bytes for factoring the largest layer, in addition to the model and the factors.

    moments: matrices as large as the widest second moment that the method reads. weights: the
    weights that it factors, in float64.
    """

    moments: int
    weights: int

    @property
    def total(self) -> int:
        return self.moments + self.weights


def factor_memory(network: PreTrainedModel, method: Method, options: Any) -> FactorMemory:
    """Return the estimate for a method, without allocating memory."""
    count = len(decoder_layers(network))
    layers = (
        _layer_memory(layer_shapes(network, index), method, options) for index in range(count)
    )
    return max(layers, key=lambda memory: memory.total)


def _layer_memory(layer: Layer, method: Method, options: Any) -> FactorMemory:
    """Return the estimate for a layer; experts are solved in sequence."""
    parts = list(_parts(layer, method))
    weights = max(sum(projection.parameters for projection in part) for part in parts)
    seconds = [tap for tap, statistic in method.reads(options) if statistic == SECOND]
    widest = max(tap_widths(layer, seconds).values(), default=0)
    few = method.low_rank_copies if not layer.components else None
    copies = method.copies if few is None else few
    numbers = copies * widest**2
    if not method.gradients(options).isdisjoint(OUTPUT_CURVATURES):
        outputs = (extent(projection)[0] for part in parts for projection in part)
        numbers = max(numbers, copies * max(outputs, default=0) ** 2)
    return FactorMemory(numbers * FLOAT64, weights * FLOAT64)


def _parts(layer: Layer, method: Method) -> Iterator[list[Projection]]:
    """Yield the matrices that are factored at the same time: outside of experts, and per expert."""
    outside = replace(layer, experts=None)
    further = outside.matrices().keys() - ACROSS.keys() if method.solves_all_matrices else set()
    yield outside.projections_named(method.covers | further)
    experts = () if layer.experts is None else layer.experts.mlps
    for number in range(len(experts)):
        yield layer.of_expert(number).projections_named(method.covers)


def check_factors(model: LoadedModel, method: Method, options: Any) -> None:
    """Raise ResourceError if the estimate exceeds the free memory of the model's device."""
    need = factor_memory(model.network, method, options)
    what = (
        f"The decompositions of a layer by {method.name}, of its moments "
        f"({megabytes(need.moments)}) and its weights ({megabytes(need.weights)}),"
    )
    raise_unless_free(need.total, what, REMEDY, hardware(str(model.device)).free)
