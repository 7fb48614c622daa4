"""Optimal Brain Surgeon along the columns of a matrix: GPTQ and SparseGPT; Wanda and Pruner-Zero.

GPTQ and SparseGPT fix the columns one by one, and the later columns compensate for the error on the
layer's inputs (GPTQ, Frantar et al., ICLR 2023; SparseGPT, Frantar and Alistarh, ICML 2023). With H
the second moment of the input and H^-1 = C^T C, C upper triangular, row by row

    e = (w_j - q_j) / C_jj,  w_k <- w_k - e C_jk  for k > j,

where e^2 / 2 is the smallest error of fixing w_j with all later columns free and all earlier
columns fixed. As in the published code, 1 % of the mean diagonal is added to H, and the column of
an input that is always zero is set to zero. H counts up to a factor.

Wanda and Pruner-Zero prune without an update of the remaining weights.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .forms import (
    Blocks,
    Masked,
    Matrix,
    Quantized,
    TwoOfFour,
    groups_of,
    masked,
    quantize,
    two_of_four,
)
from .grids import least_squares_grids, nearest_codes
from .linalg import invert_lower_

DAMPING = 0.01  # share of the mean diagonal of H that is added to H
BLOCK = 128  # columns between two updates of all later columns; a multiple of four


def inverse_factor(moment: Tensor, damping: float = DAMPING) -> Tensor:
    """Return C [n, n] float64 of a second moment [n, n]: upper triangular, C^T C = (H +
    damping)^-1.
    """
    h = moment.double().clone()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    # H = U U^T with U upper triangular is the Cholesky factor of the flipped H, flipped back
    lower = torch.linalg.cholesky(h.flip(0, 1))
    return invert_lower_(lower).flip(0, 1)


def sweep_columns(
    weight: Tensor, moment: Tensor, value: Callable[[int, Tensor, Tensor], Tensor]
) -> Tensor:
    """Fix the columns of a matrix [out, in] one by one. Return it in float64, [out, in].

    moment [in, in]: second moment of the input. value(j, remaining, diagonal) returns the value
    [out] of column j, where remaining [out, m] are the current columns from j on and diagonal [m]
    is that of C.
    """
    w, factor = weight.double().clone(), inverse_factor(moment)
    w[:, moment.diagonal() == 0] = 0
    for start in range(0, w.shape[1], BLOCK):
        block = slice(start, min(start + BLOCK, w.shape[1]))
        columns, block_factor = w[:, block], factor[block, block]
        errors = torch.zeros_like(columns)
        for j in range(columns.shape[1]):
            chosen = value(start + j, columns[:, j:], block_factor.diagonal()[j:])
            errors[:, j] = (columns[:, j] - chosen) / block_factor[j, j]
            columns[:, j + 1 :] -= errors[:, j, None] * block_factor[j, j + 1 :]
            columns[:, j] = chosen
        w[:, block.stop :] -= errors @ factor[block, block.stop :]
    return w


def gptq(matrix: Matrix, moment: Tensor, bits: int, group: int) -> Matrix:
    """Quantize the stored numbers of a matrix [out, in] by GPTQ.

    moment [in, in]: second moment of the input. Each block of a form, for example the numbers
    beside an identity block, has the moment of the inputs that it multiplies. The grids have the
    least squared error of the original numbers, weighted with the mean squares of their inputs;
    groups may span several rows. Forms without stored numbers, sparse forms and quantized forms are
    returned unchanged.
    """
    if not isinstance(matrix, Tensor | Blocks):
        return matrix
    if isinstance(matrix, Tensor):
        numbers, inputs = matrix[None], torch.arange(matrix.shape[1], device=matrix.device)[None]
    else:
        numbers, inputs = getattr(matrix, matrix.WEIGHTS[0]), matrix.inputs
        numbers = numbers if numbers.ndim == 3 else numbers[None]  # [blocks, rows, inputs]
    if not numbers.numel():
        return matrix
    squares = moment.diagonal()[inputs.long()].unsqueeze(1).expand_as(numbers)
    low, step = least_squares_grids(groups_of(numbers, group), bits, groups_of(squares, group))

    def spread(values: Tensor) -> Tensor:
        return values.double().repeat_interleave(group)[: numbers.numel()].view_as(numbers)

    grids = zip(spread(low), spread(step), strict=True)
    on_grid = torch.stack(
        [
            _rounded(block, moment[index][:, index], grid, 2**bits - 1)
            for block, index, grid in zip(numbers, inputs.long(), grids, strict=True)
        ]
    )
    if isinstance(matrix, Tensor):
        rounded: Matrix = on_grid[0]
    else:
        weights: dict[str, Any] = {
            matrix.WEIGHTS[0]: on_grid.view_as(getattr(matrix, matrix.WEIGHTS[0]))
        }
        rounded = replace(matrix, **weights)
    form = quantize(rounded, bits, group, lambda _groups, _bits: (low.double(), step.double()))
    assert isinstance(form, Quantized)  # the matrix has numbers
    return replace(form, low=low, step=step)


def _rounded(
    weight: Tensor, moment: Tensor, grid: tuple[Tensor, Tensor], largest_code: int
) -> Tensor:
    """Return a matrix [out, in] on the grid low + step * code, by GPTQ, float64.

    grid: low and step of each number, [out, in] float64 each. The columns of the largest inputs are
    fixed first, while most other columns can still compensate for their errors.
    """
    order = moment.diagonal().argsort(descending=True, stable=True)
    lows, steps = (values[:, order] for values in grid)

    def value(j: int, remaining: Tensor, _diagonal: Tensor) -> Tensor:
        codes = nearest_codes(remaining[:, 0], lows[:, j], steps[:, j], largest_code)
        return lows[:, j] + steps[:, j] * codes

    ordered = sweep_columns(weight[:, order], moment[order][:, order], value)
    return ordered[:, order.argsort()]


def second_factor(up: Tensor, before: Tensor, after: Tensor, moment: Tensor | None) -> Tensor:
    """Return the second factor [out, r] of a pair, solved again after the first factor changed.

    before, after [r, in]: the first factor. moment S [in, in]: second moment of the input; None for
    the identity. With m the mean diagonal of `after S after^T`, the result B minimizes

        E |up before x - B after x|^2 + DAMPING m |B - up|^2,

    so the error of a rounded first factor is undone as far as a second factor can.
    """
    outputs = after.double() if moment is None else after.double() @ moment.double()
    inner = outputs @ after.double().mT
    missing = up.double() @ (before.double() - after.double()) @ outputs.mT  # [out, r]
    inner.diagonal().add_(DAMPING * inner.diagonal().mean() or 1.0)
    step = torch.cholesky_solve(missing.mT, torch.linalg.cholesky(inner)).mT
    return (up.double() + step).to(up.dtype)


def sparsegpt(weight: Tensor, moment: Tensor, share: float | None = None) -> TwoOfFour | Masked:
    """Prune a matrix [out, in] by SparseGPT: two of four numbers in a row remain.

    The two with the smallest current w^2 / C_jj^2 are removed. share in (0, 1): instead, this share
    of the numbers in each block of BLOCK columns remains, without a pattern.
    """
    mask = torch.zeros_like(weight, dtype=torch.bool)

    def value(j: int, remaining: Tensor, diagonal: Tensor) -> Tensor:
        if share is None and j % 4 == 0:
            mask[:, j : j + 4] = best_two((remaining[:, :4] / diagonal[:4]).abs())
        elif share is not None and j % BLOCK == 0:
            scores = (remaining / diagonal).abs()
            mask[:, j : j + BLOCK] = best_share(scores.flatten()[None], share).view_as(scores)
        return remaining[:, 0] * mask[:, j]

    updated = sweep_columns(weight, moment, value)
    return _sparse_form(updated.to(weight.dtype), mask, share)


def wanda(weight: Tensor, moment: Tensor, share: float | None = None) -> TwoOfFour | Masked:
    """Prune a matrix [out, in] by Wanda (Sun et al., ICLR 2024): two of four numbers in a row
    remain.

    The two with the largest |W_ij| sqrt(E x_j^2) remain. share in (0, 1): instead, this share of
    each row remains, without a pattern.
    """
    scores = weight.double().abs() * moment.double().diagonal().sqrt()
    return _sparse_form(weight, _best(scores, share), share)


def pruner_zero(weight: Tensor, gradient: Tensor, share: float | None = None) -> TwoOfFour | Masked:
    """Prune a matrix [out, in] by Pruner-Zero (Dong et al., ICML 2024): two of four numbers remain.

    The two with the largest `W^2 minmax(G)` remain, the formula found by the paper's search. share:
    see `wanda`. gradient G [out, in], >= 0: norms of the gradients over samples. minmax maps the
    smallest entry of the matrix to 0 and the largest to 1; if all entries are equal, the largest
    weights remain.
    """
    low, high = gradient.double().aminmax()
    scaled = (gradient.double() - low) / (high - low) if high > low else 1.0
    return _sparse_form(weight, _best(weight.double() ** 2 * scaled, share), share)


def best_two(scores: Tensor) -> Tensor:
    """Mark the two largest of every four scores [out, n] in a row, bool [out, n]."""
    fours = scores.unflatten(1, (-1, 4))
    chosen = torch.zeros_like(fours, dtype=torch.bool)
    return chosen.scatter(2, fours.topk(2, 2).indices, True).flatten(1)


def best_share(scores: Tensor, share: float) -> Tensor:
    """Mark the largest scores [out, n] of each row, this share of it and at least one, bool [out,
    n].
    """
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    count = max(1, round(share * scores.shape[1]))
    return chosen.scatter(1, scores.topk(count, 1).indices, True)


def _best(scores: Tensor, share: float | None) -> Tensor:
    return best_two(scores) if share is None else best_share(scores, share)


def _sparse_form(matrix: Tensor, mask: Tensor, share: float | None) -> TwoOfFour | Masked:
    return two_of_four(matrix, mask) if share is None else masked(matrix, mask)
