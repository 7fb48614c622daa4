"""Quantised factors (LatentLLM appendix I.1, eq. 239-242): whatever was factored, its numbers
become codes of q bits, chunk by chunk.

Round to nearest after the fact; the paper's straight-through training of the factors is not done.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from ...forms import Matrix, quantise
from ...layer import Layer, LowRank
from ...spectra import Cost
from ..factors import Factor


@dataclass(frozen=True, eq=False)
class QuantisedFactor:
    """A factor whose projections store B and A as codes.

    Ranks, loss curve and count of numbers are those of `inner`, bytes are not.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    inner: Factor
    bits: int
    chunk: int

    def truncate(self, layer: Layer, rank: int) -> Layer:
        before, small = layer.matrices(), self.inner.truncate(layer, rank)
        coded: dict[int, Matrix] = {}  # a factor that several projections share stays shared

        def code(matrix: Matrix) -> Matrix:
            return coded.setdefault(id(matrix), quantise(matrix, self.bits, self.chunk))

        changed = {
            name: replace(projection, down=code(projection.down), up=code(projection.up))
            for name, projection in small.matrices().items()
            if isinstance(projection, LowRank) and projection is not before[name]
        }
        return small.with_matrices(**changed)


def quantised(factor: Factor, bits: int, chunk: int) -> QuantisedFactor:
    return QuantisedFactor(
        factor.values,
        replace(factor.cost, bits=bits, chunk=chunk),
        factor.heads,
        factor,
        bits,
        chunk,
    )
