"""Lower triangular matrices without the zeros above their diagonals: in half the memory, and on
half the disk.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

COLUMNS = 32  # in one block, which has its numbers from the row of its first column on


@dataclass(frozen=True, eq=False)
class Lower:
    """A lower triangular matrix [n, n], n = size: numbers holds about n^2 / 2 of its own, block of
    columns after block of columns.
    """

    numbers: Tensor
    size: int

    @classmethod
    def of(cls, lower: Tensor) -> "Lower":
        """Of a matrix [n, n]; what is above the diagonal is zero, and not looked at."""
        size = lower.shape[0]
        starts = range(0, size, COLUMNS)
        one = cls(lower.new_empty(sum(_shape(size, start).numel() for start in starts)), size)
        for start, block in one._blocks():
            block.copy_(lower[start:, start : start + COLUMNS])
        return one

    def leading(self, count: int) -> Tensor:
        """The first rows and columns, [count, count]."""
        out = self.numbers.new_zeros(count, count)
        for start, block in self._blocks():
            if start >= count:
                break
            out[start:, start : start + COLUMNS] = block[: count - start, : count - start]
        return out.tril_()

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """The first column of every block, and its numbers, [n - start, COLUMNS]."""
        at = 0
        for start in range(0, self.size, COLUMNS):
            shape = _shape(self.size, start)
            yield start, self.numbers[at : at + shape.numel()].view(shape)
            at += shape.numel()


def _shape(size: int, start: int) -> torch.Size:
    return torch.Size((size - start, min(COLUMNS, size - start)))
