"""Greedy elimination of the columns of a matrix (optimal brain surgeon).

Let P = C^{-1} and G = W^T W. Removing column j and compensating with the remaining columns updates
them to `P - s s^T` and `G - h s^T - s h^T`, where `s = P_j / sqrt(P_jj)`, `u = W_j / sqrt(P_jj)`
and `h = W^T u - |u|^2 s / 2`. Both matrices are symmetric, so only their lower panels are updated.
Removed rows and columns are never read again, so the matrices shrink.
"""

import torch
from torch import Tensor

from .linalg import MIN_DAMPING, cholesky, invert_lower_

# Columns eliminated between two updates of the matrices. More columns mean fewer passes over n x n
# numbers, but longer sums inside a block. 64 was fastest for n from 1536 to 8192.
ELIMINATED = 64
PANEL = 1024  # rows updated at once, up to the last column of their panel
SHRUNK = 0.9  # share of remaining columns below which the matrices are made smaller


def elimination_order(weight: Tensor, gram: Tensor, strength: float = MIN_DAMPING) -> Tensor:
    """Return the columns of `weight` by importance for `weight @ z`, most important first, [n].

    weight [d, n]; gram C = E[z z^T] [n, n]. Each step removes the column j with the smallest
    `|w_j|^2 / [C^{-1}]_jj` and compensates with the remaining columns; the result is the reversed
    order of removal. So the second of two near-duplicates becomes important once the first is
    removed.

    The elimination runs in blocks as in GPTQ (Frantar et al., 2023): inside a block only the two
    rows that a step needs are updated, and the matrices are updated at the end of the block. The
    order is the same as without blocks. Besides the arguments, at most two float64 matrices [n, n]
    are held.
    """
    count, weight = weight.shape[1], weight.double()
    matrices = weight.new_empty(2, count, count)  # C^{-1}, W^T W
    cholesky(gram, strength, matrices[0])
    del gram  # frees gigabytes if the caller holds no reference
    inverse_of_(matrices[0])
    for start, end in panels(count):
        torch.mm(weight[:, start:end].mT, weight[:, :end], out=matrices[1, start:end, :end])
    pivots, squares = (matrix.diagonal().clone() for matrix in matrices)
    columns, removed = torch.arange(count, device=weight.device), []
    for start in range(0, count, ELIMINATED):
        remaining = count - start
        if remaining <= SHRUNK * len(columns):
            # ascending, so that numbers move forwards; squares of removed columns are infinite
            remaining_columns = squares.isinf().to(torch.uint8).argsort(stable=True)[:remaining]
            matrices = shrunk_(matrices, remaining_columns)
            columns, pivots, squares = (
                columns[remaining_columns],
                pivots[remaining_columns],
                squares[remaining_columns],
            )
        chosen, steps = _block(matrices, pivots, squares, min(ELIMINATED, remaining))
        removed.append(columns[chosen])
        _update_(matrices, steps)
    return torch.cat(removed).flip(0)


def _block(matrices: Tensor, pivots: Tensor, squares: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Remove `size` columns. Return their indices [size], and s and h of each step [2, size, m].

    pivots, squares [m]: the diagonals, updated in place; 1 and infinity for removed columns.
    """
    steps = matrices.new_zeros(2, size, matrices.shape[-1])
    ends = _panel_ends(matrices)
    chosen, tiny = [], torch.finfo(torch.float64).tiny
    for k in range(size):
        j = (
            (squares / pivots.clamp_min(tiny)).argmin().view(1)
        )  # a tensor, so that the GPU is not waited for
        rows = _rows(matrices, j, ends)
        s, h = steps[:, :k]
        at_s, at_h = steps[:, :k].index_select(2, j).mT  # [1, k] each
        row = torch.addmm(rows[0], at_s, s, alpha=-1)[0]
        side = torch.addmm(rows[1], at_h, s, alpha=-1).addmm_(at_s, h, alpha=-1)[0]
        root = row.index_select(0, j).clamp_min(tiny).rsqrt()
        torch.mul(row, root, out=steps[0, k])
        side = side * root
        torch.addcmul(
            side, steps[0, k], side.index_select(0, j) * root, value=-0.5, out=steps[1, k]
        )
        pivots.addcmul_(steps[0, k], steps[0, k], value=-1).index_fill_(0, j, 1.0)
        squares.addcmul_(steps[0, k], steps[1, k], value=-2).index_fill_(0, j, torch.inf)
        chosen.append(j)
    return torch.cat(chosen), steps


def _update_(matrices: Tensor, steps: Tensor) -> None:
    """Update the lower panels of P and G by s and h of a block [2, size, m]."""
    s, forth, back = steps[0], steps.flatten(0, 1), steps.flip(0).flatten(0, 1)
    for start, end in panels(matrices.shape[-1]):
        matrices[0, start:end, :end].addmm_(s[:, start:end].mT, s[:, :end], alpha=-1)
        matrices[1, start:end, :end].addmm_(back[:, start:end].mT, forth[:, :end], alpha=-1)


def panels(count: int) -> list[tuple[int, int]]:
    """Return the first row and the end of each panel. Columns end at the same index."""
    return [(start, min(start + PANEL, count)) for start in range(0, count, PANEL)]


def _panel_ends(matrices: Tensor) -> Tensor | None:
    """Return the end of the panel of each row, [m]; None for a single panel."""
    count = matrices.shape[-1]
    if count <= PANEL:
        return None
    positions = torch.arange(count, device=matrices.device)
    return (positions // PANEL + 1) * PANEL


def _rows(matrices: Tensor, j: Tensor, ends: Tensor | None) -> Tensor:
    """Return row j of both matrices, [2, 1, m]: the row in the panel, then column j of later
    panels.
    """
    rows = matrices.index_select(1, j)
    if ends is None:
        return rows
    in_panel = torch.arange(len(ends), device=matrices.device) < ends.index_select(0, j)
    return torch.where(in_panel, rows, matrices.index_select(2, j).mT)


def shrunk_(matrices: Tensor, columns: Tensor) -> Tensor:
    """Keep some rows and columns [m] (ascending) of the lower panels of two matrices [2, n, n].

    Returns the panels of matrices [2, m, m], in the same memory.
    """
    size, flat = len(columns), matrices.view(-1)
    ends = (columns // PANEL + 1) * PANEL  # end of the panel that each row was in
    for number in range(2):
        for start, end in panels(size):
            rows = columns[start:end]
            panel = matrices[number].index_select(0, rows).index_select(1, columns[:end])
            # two columns of this panel may come from different panels: take the stored triangle
            diagonal_block = panel[:, start:]
            late = rows >= ends[start:end].unsqueeze(1)
            diagonal_block.copy_(torch.where(late, diagonal_block.mT, diagonal_block))
            offset = (number * size + start) * size
            flat[offset : offset + (end - start) * size].view(-1, size)[:, :end] = panel
    return flat[: 2 * size * size].view(2, size, size)


def inverse_of_(lower: Tensor) -> Tensor:
    """Overwrite the lower factor of C = L L^T [n, n] by C^{-1}, in the lower panels only."""
    root = invert_lower_(lower)
    for start, end in panels(len(root)):
        root[start:end, :end] = root[start:, start:end].mT @ root[start:, :end]
    return root
