"""Factors as quantized weights of q bits, chunk by chunk (LatentLLM appendix I.1, eq. 239-242).

The factors are rounded to nearest after factorization. Healing trains them with straight-through
gradients, see lrcore/compression/steps/healing/straight_through.py.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from ...layers.forms import Matrix, quantize
from ...layers.layer import Layer, LowRank
from ...layers.spectra import Cost
from ..factors import Factor


@dataclass(frozen=True, eq=False)
class QuantizedFactor:
    """A factor whose projections store B and A as quantized weights.

    Ranks, loss curve and parameters are those of `inner`; bytes are fewer.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    inner: Factor
    bits: int
    chunk: int

    def truncate(self, layer: Layer, rank: int) -> Layer:
        before, small = layer.matrices(), self.inner.truncate(layer, rank)
        done: dict[int, Matrix] = {}  # shared matrices remain shared

        def once(matrix: Matrix) -> Matrix:
            return done.setdefault(id(matrix), quantize(matrix, self.bits, self.chunk))

        changed = {
            name: replace(projection, down=once(projection.down), up=once(projection.up))
            for name, projection in small.matrices().items()
            if isinstance(projection, LowRank) and projection is not before[name]
        }
        return small.with_matrices(**changed)


def quantized(factor: Factor, bits: int, chunk: int) -> QuantizedFactor:
    """Return the factor with its matrices stored in `bits` bits, `chunk` numbers per scale."""
    cost = replace(factor.cost, bits=bits, chunk=chunk)
    return QuantizedFactor(factor.values, cost, factor.heads, factor, bits, chunk)
