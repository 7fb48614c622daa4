"""Symmetric matrices on disk: the upper half of the covariance, a quarter of the second moment's
float64 numbers.

Rounding to float32 is relative to every number, so it is small beside the errors of the float32
products that the numbers are sums of. Only after the means are taken off, though: of a channel with
a mean of 1,000 sigma, `E[x^2]` in float32 keeps one digit of the variance.
"""

import torch
from torch import Tensor

ROWS = 32  # of the matrix in one block; the numbers below the diagonal of a block are stored too


def packed(second: Tensor, mean: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Second moments [n, n] without the product of the means [n] (None: as they are), as one row of
    about n^2 / 2 numbers.
    """
    parts = []
    for start, end in _blocks(second.shape[0]):
        rows = second[start:end, start:]
        if mean is not None:
            rows = rows - torch.outer(mean[start:end], mean[start:])
        parts.append(rows.to(dtype).flatten())
    return torch.cat(parts)


def unpacked(numbers: Tensor, mean: Tensor | None, size: int) -> Tensor:
    """The inverse of `packed`: second moments [n, n] float64, n = size."""
    whole = numbers.new_empty(size, size, dtype=torch.float64)
    at = 0
    for start, end in _blocks(size):
        count = (end - start) * (size - start)
        rows = whole[start:end, start:]
        rows.copy_(numbers[at : at + count].view(end - start, size - start))
        if mean is not None:
            rows += torch.outer(mean[start:end], mean[start:])
        whole[end:, start:end] = rows[:, end - start :].mT
        at += count
    return whole


def length(size: int) -> int:
    """How many numbers a matrix [size, size] is packed into."""
    return sum((end - start) * (size - start) for start, end in _blocks(size))


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + ROWS, size)) for start in range(0, size, ROWS)]
