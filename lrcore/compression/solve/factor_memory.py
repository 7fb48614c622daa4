"""Estimate of the memory that a factorization needs, from the shapes of a model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from ...layers.layer import Layer
from ...layers.statistics import SECOND
from ...methods import Method
from ...models.architectures import decoder_layers
from ...models.layers import layer_shapes
from ...models.load import LoadedModel
from ...system.hardware import hardware
from ...system.memory import megabytes, raise_unless_free
from ..calibration.working_memory import tap_widths

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
    seconds = [tap for tap, statistic in method.reads(options) if statistic == SECOND]
    widest = max(tap_widths(layer, seconds).values(), default=0)
    numbers = max(_weight_counts(layer, method))
    return FactorMemory(method.copies * widest**2 * FLOAT64, numbers * FLOAT64)


def _weight_counts(layer: Layer, method: Method) -> Iterator[int]:
    """Yield how many weights are factored at the same time: outside of experts, and per expert."""
    outside = replace(layer, experts=None)
    yield sum(p.parameters for p in outside.projections_named(method.covers))
    for number in range(0 if layer.experts is None else len(layer.experts.mlps)):
        yield sum(p.parameters for p in layer.of_expert(number).projections_named(method.covers))


def check_factors(model: LoadedModel, method: Method, options: Any) -> None:
    """Raise ResourceError if the estimate exceeds the free memory of the model's device."""
    need = factor_memory(model.network, method, options)
    what = (
        f"The decompositions of a layer by {method.name}, of its moments "
        f"({megabytes(need.moments)}) and its weights ({megabytes(need.weights)}),"
    )
    raise_unless_free(need.total, what, REMEDY, hardware(str(model.device)).free)
