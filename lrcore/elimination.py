"""Greedy elimination of the columns of a matrix (optimal brain surgeon), for wide matrices too.

With P = C^{-1} and G = W^T W, removing column j and letting the others make up for it is
`P - s s^T` and `G - h s^T - s h^T`, where `s = P_j / sqrt(P_jj)`, `u = W_j / sqrt(P_jj)` and
`h = W^T u - |u|^2 s / 2`. Both are symmetric, so only their lower panels are brought up to date;
what is removed is never read again, so both shrink.
"""

import torch
from torch import Tensor

from .linalg import cholesky, invert_lower_

# Columns that are eliminated before the matrices are brought up to date: the more, the fewer passes
# over n x n numbers, and the longer the sums inside a block. 64 was fastest at n from 1536 to 8192.
ELIMINATED = 64
PANEL = 1024  # rows that are brought up to date at once, up to the last column of their panel
SHRUNK = 0.9  # the share of columns that are left when the matrices are made smaller


def elimination_order(weight: Tensor, gram: Tensor, strength: float = 1e-8) -> Tensor:
    """Columns of `weight` by importance for `weight @ z`, most important first. Returns [n].

    weight [d, n]; gram C = E[z z^T] [n, n]. Greedy elimination, reversed: each step removes the
    column j of least `|w_j|^2 / [C^{-1}]_jj` and lets the others compensate, so of two
    near-duplicates the second becomes important once the first is gone.

    By blocks as in GPTQ (Frantar et al., 2023): inside a block the two rows that a step needs are
    brought up to date one by one, and the matrices once at its end. The order is that of one step
    at a time. Two matrices [n, n] float64 are held at most, beside the arguments.
    """
    count, weight = weight.shape[1], weight.double()
    both = weight.new_empty(2, count, count)  # C^{-1}, W^T W
    cholesky(gram, strength, both[0])
    del gram  # gigabytes, where the caller has no use for it
    inverse_of_(both[0])
    for start, end in panels(count):
        torch.mm(weight[:, start:end].mT, weight[:, :end], out=both[1, start:end, :end])
    pivots, squares = (one.diagonal().clone() for one in both)
    names, removed = torch.arange(count, device=weight.device), []
    for start in range(0, count, ELIMINATED):
        left = count - start
        if left <= SHRUNK * len(names):
            # ascending, so that numbers move towards the front; what is removed counts infinity
            kept = squares.isinf().to(torch.uint8).argsort(stable=True)[:left]
            both = shrunk_(both, kept)
            names, pivots, squares = names[kept], pivots[kept], squares[kept]
        chosen, steps = _block(both, pivots, squares, min(ELIMINATED, left))
        removed.append(names[chosen])
        _update_(both, steps)
    return torch.cat(removed).flip(0)


def _block(both: Tensor, pivots: Tensor, squares: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Remove `size` columns: their places [size], and s and h of every step, [2, size, m].

    pivots, squares [m]: the diagonals, which are brought up to date; of what is removed, 1 and
    infinity.
    """
    steps = both.new_zeros(2, size, both.shape[-1])
    ends = _panel_ends(both)
    chosen, tiny = [], torch.finfo(torch.float64).tiny
    for k in range(size):
        j = (squares / pivots.clamp_min(tiny)).argmin().view(1)  # an index tensor: no wait
        rows = _rows(both, j, ends)
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


def _update_(both: Tensor, steps: Tensor) -> None:
    """Bring the lower panels of P and G up to date, by s and h of a block [2, size, m]."""
    s, forth, back = steps[0], steps.flatten(0, 1), steps.flip(0).flatten(0, 1)
    for start, end in panels(both.shape[-1]):
        both[0, start:end, :end].addmm_(s[:, start:end].mT, s[:, :end], alpha=-1)
        both[1, start:end, :end].addmm_(back[:, start:end].mT, forth[:, :end], alpha=-1)


def panels(count: int) -> list[tuple[int, int]]:
    """First row and end of every panel; the columns of one end where its rows do."""
    return [(start, min(start + PANEL, count)) for start in range(0, count, PANEL)]


def _panel_ends(both: Tensor) -> Tensor | None:
    """Of every row, where its panel ends, [m]; None where there is one panel."""
    count = both.shape[-1]
    if count <= PANEL:
        return None
    places = torch.arange(count, device=both.device)
    return (places // PANEL + 1) * PANEL


def _rows(both: Tensor, j: Tensor, ends: Tensor | None) -> Tensor:
    """Row j of both matrices, [2, 1, m]: from its panel, and from the columns of those below."""
    rows = both.index_select(1, j)
    if ends is None:
        return rows
    here = torch.arange(len(ends), device=both.device) < ends.index_select(0, j)
    return torch.where(here, rows, both.index_select(2, j).mT)


def shrunk_(both: Tensor, kept: Tensor) -> Tensor:
    """Rows and columns kept [m], ascending, of the lower panels of two matrices [2, n, n]: those of
    [2, m, m], in the same memory.
    """
    small, flat = len(kept), both.view(-1)
    ends = (kept // PANEL + 1) * PANEL  # of the panel that a row was in
    for which in range(2):
        for start, end in panels(small):
            rows = kept[start:end]
            panel = both[which].index_select(0, rows).index_select(1, kept[:end])
            # of two columns of this panel, the later may have been in a later panel than the row
            own = panel[:, start:]
            late = rows >= ends[start:end].unsqueeze(1)
            own.copy_(torch.where(late, own.mT, own))
            at = (which * small + start) * small
            flat[at : at + (end - start) * small].view(-1, small)[:, :end] = panel
    return flat[: 2 * small * small].view(2, small, small)


def inverse_of_(lower: Tensor) -> Tensor:
    """C^{-1} in the place of the lower factor of C = L L^T, [n, n], in its lower panels alone."""
    root = invert_lower_(lower)
    for start, end in panels(len(root)):
        root[start:end, :end] = root[start:, start:end].mT @ root[start:, :end]
    return root
