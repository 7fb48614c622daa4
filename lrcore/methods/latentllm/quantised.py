"""Factors as quantised weights of q bits, chunk by chunk (LatentLLM appendix I.1, eq. 239-242).

Rounding to nearest after factorising; healing trains them through it, see
lrcore/compression/healing/straight_through.py.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from ...forms import Matrix, quantise
from ...layer import Layer, LowRank
from ...spectra import Cost
from ..factors import Factor


@dataclass(frozen=True, eq=False)
class QuantisedFactor:
    """A factor whose projections store B and A as quantised weights.

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
        done: dict[int, Matrix] = {}  # a matrix that several projections share stays shared

        def once(matrix: Matrix) -> Matrix:
            return done.setdefault(id(matrix), quantise(matrix, self.bits, self.chunk))

        changed = {
            name: replace(projection, down=once(projection.down), up=once(projection.up))
            for name, projection in small.matrices().items()
            if isinstance(projection, LowRank) and projection is not before[name]
        }
        return small.with_matrices(**changed)


def quantised(factor: Factor, bits: int, chunk: int) -> QuantisedFactor:
    """The factor with its matrices stored in `bits` bits, `chunk` numbers to a scale."""
    cost = replace(factor.cost, bits=bits, chunk=chunk)
    return QuantisedFactor(factor.values, cost, factor.heads, factor, bits, chunk)
