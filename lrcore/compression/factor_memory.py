"""What factorising takes in memory at once, estimated from the shapes of a model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from ..calibration.working_memory import tap_widths
from ..hardware import hardware
from ..layer import Layer
from ..memory import megabytes, raise_unless_free
from ..methods import Method
from ..models.architectures import decoder_layers
from ..models.layers import layer_shapes
from ..models.load import LoadedModel
from ..statistics import SECOND

FLOAT64 = 8  # bytes of a number inside of every decomposition
REMEDY = "Choose a method that decomposes less, such as svd or a3, or a machine with more memory."


@dataclass(frozen=True)
class FactorMemory:
    """Bytes that factorising the largest layer has at once beside the model and its factors:
    matrices as large as the widest second moment that the method reads; the weights that it
    factors, in float64.
    """

    moments: int
    weights: int

    @property
    def total(self) -> int:
        return self.moments + self.weights


def factor_memory(network: PreTrainedModel, method: Method, options: Any) -> FactorMemory:
    """The estimate for a method; nothing is allocated or read from disk."""
    count = len(decoder_layers(network))
    known = (_of_layer(layer_shapes(network, index), method, options) for index in range(count))
    return max(known, key=lambda one: one.total)


def _of_layer(layer: Layer, method: Method, options: Any) -> FactorMemory:
    """Experts are solved one after the other."""
    seconds = [tap for tap, statistic in method.reads(options) if statistic == SECOND]
    widest = max(tap_widths(layer, seconds).values(), default=0)
    numbers = max(_covered(layer, method))
    return FactorMemory(method.copies * widest**2 * FLOAT64, numbers * FLOAT64)


def _covered(layer: Layer, method: Method) -> Iterator[int]:
    """How many weights the method factors at once: outside of experts, and of each of them."""
    outside = replace(layer, experts=None)
    yield sum(one.parameters for one in outside.held(method.covers))
    for number in range(0 if layer.experts is None else len(layer.experts.mlps)):
        yield sum(one.parameters for one in layer.of_expert(number).held(method.covers))


def check_factors(model: LoadedModel, method: Method, options: Any) -> None:
    """Raise Shortage where the estimate is more than what is free on the model's device."""
    need = factor_memory(model.network, method, options)
    what = (
        f"The decompositions of a layer by {method.name}, of its moments "
        f"({megabytes(need.moments)}) and its weights ({megabytes(need.weights)}),"
    )
    raise_unless_free(need.total, what, REMEDY, hardware(str(model.device)).free)
