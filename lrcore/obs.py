"""Optimal Brain Surgeon along the columns of a matrix: GPTQ and SparseGPT; and the masks of Wanda
and Pruner-Zero, which leave the weights that they keep as they are.

One column after another is given its value, and the columns after it make up for the error on the
layer's inputs (GPTQ, Frantar et al., ICLR 2023; SparseGPT, Frantar and Alistarh, ICML 2023). With H
the second moment of the input and H^-1 = C^T C, C upper triangular, row by row

    e = (w_j - q_j) / C_jj,  w_k <- w_k - e C_jk  for k > j,

which is the least error e^2 / 2 of fixing w_j, all columns after it free and those before fixed.
As in the published code, 1 % of the mean diagonal is added to H, and an input that is always zero
has its column set to zero. H counts up to a factor.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .forms import (
    Masked,
    Quantised,
    TwoOfFour,
    extremes,
    groups_of,
    masked,
    quantise,
    two_of_four,
)
from .linalg import invert_lower_

DAMPING = 0.01  # share of the mean diagonal of H that is added to it
BLOCK = 128  # columns between two updates of all that follow; a multiple of four


def inverse_factor(moment: Tensor, damping: float = DAMPING) -> Tensor:
    """C [n, n] float64 of a second moment [n, n]: upper triangular, C^T C = (H + damping)^-1."""
    h = moment.double().clone()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += damping * diagonal.mean()
    # H = U U^T with U upper triangular is the Cholesky factor of the flipped H, flipped back
    lower = torch.linalg.cholesky(h.flip(0, 1))
    return invert_lower_(lower).flip(0, 1)


def swept(weight: Tensor, moment: Tensor, value: Callable[[int, Tensor, Tensor], Tensor]) -> Tensor:
    """A matrix [out, in] after a value was chosen for every column, [out, in] float64.

    moment [in, in] of its input. value(j, rest, c): the value [out] of column j, where rest [out,
    m] are column j and some after it as they are now, and c [m] the diagonal of C there.
    """
    w, factor = weight.double().clone(), inverse_factor(moment)
    w[:, moment.diagonal() == 0] = 0
    for start in range(0, w.shape[1], BLOCK):
        block = slice(start, min(start + BLOCK, w.shape[1]))
        part, c = w[:, block], factor[block, block]
        errors = torch.zeros_like(part)
        for j in range(part.shape[1]):
            q = value(start + j, part[:, j:], c.diagonal()[j:])
            errors[:, j] = (part[:, j] - q) / c[j, j]
            part[:, j + 1 :] -= errors[:, j, None] * c[j, j + 1 :]
            part[:, j] = q
        w[:, block.stop :] -= errors @ factor[block, block.stop :]
    return w


def gptq(weight: Tensor, moment: Tensor, bits: int, group: int) -> Quantised:
    """A matrix [out, in] on the even grids of its groups, each column rounded after the ones before
    it were made up for. The grids are min-max, as those of `forms.quantise` by default.

    The grids are those of the weights as given, so that groups may cross rows.
    """
    low, step = extremes(groups_of(weight, group), bits)

    def spread(t: Tensor) -> Tensor:
        return t.double().repeat_interleave(group)[: weight.numel()].view_as(weight)

    lows, steps = spread(low), spread(step)
    units = torch.where(steps > 0, steps, 1)

    def value(j: int, rest: Tensor, _c: Tensor) -> Tensor:
        codes = ((rest[:, 0] - lows[:, j]) / units[:, j]).round().clamp(0, 2**bits - 1)
        return lows[:, j] + steps[:, j] * codes

    on_grid = swept(weight, moment, value)
    form = quantise(on_grid, bits, group, lambda _groups, _bits: (low.double(), step.double()))
    assert isinstance(form, Quantised)  # a matrix has numbers
    return Quantised(
        form.codes, low, step, form.order, form.inner, form.whole, form.bits, form.chunk
    )


def sparsegpt(weight: Tensor, moment: Tensor, share: float | None = None) -> TwoOfFour | Masked:
    """A matrix [out, in] with two of every four numbers of a row kept, the others made up for.

    Of four columns as they are when their turn comes, the two with the least w^2 / C_jj^2 go. share
    in (0, 1): of the numbers of every BLOCK columns, wherever they are, so many are kept instead.
    """
    kept = torch.zeros_like(weight, dtype=torch.bool)

    def value(j: int, rest: Tensor, c: Tensor) -> Tensor:
        if share is None and j % 4 == 0:
            kept[:, j : j + 4] = best_two((rest[:, :4] / c[:4]).abs())
        elif share is not None and j % BLOCK == 0:
            scores = (rest / c).abs()
            kept[:, j : j + BLOCK] = best_share(scores.flatten()[None], share).view_as(scores)
        return rest[:, 0] * kept[:, j]

    made = swept(weight, moment, value)
    return _kept(made.to(weight.dtype), kept, share)


def wanda(weight: Tensor, moment: Tensor, share: float | None = None) -> TwoOfFour | Masked:
    """A matrix [out, in] with the two of every four numbers of a row kept that have the largest
    |W_ij| sqrt(E x_j^2), as they are (Wanda, Sun et al., ICLR 2024). share in (0, 1): of every row
    so many, wherever they are.
    """
    scores = weight.double().abs() * moment.double().diagonal().sqrt()
    return _kept(weight, _best(scores, share), share)


def pruner_zero(weight: Tensor, gradient: Tensor, share: float | None = None) -> TwoOfFour | Masked:
    """A matrix [out, in] with the two of every four numbers of a row kept, as they are, that have
    the largest `W^2 minmax(G)` (Pruner-Zero, Dong et al., ICML 2024, the formula that its search
    found). share: as of `wanda`.

    gradient G [out, in], >= 0: norms of the gradients over samples. minmax takes the least of the
    matrix to 0 and the largest to 1; where all are the same, the largest weights stay.
    """
    low, high = gradient.double().aminmax()
    scaled = (gradient.double() - low) / (high - low) if high > low else 1.0
    return _kept(weight, _best(weight.double() ** 2 * scaled, share), share)


def best_two(scores: Tensor) -> Tensor:
    """Whether each of scores [out, n] is among the two largest of its four, [out, n]."""
    fours = scores.unflatten(1, (-1, 4))
    chosen = torch.zeros_like(fours, dtype=torch.bool)
    return chosen.scatter(2, fours.topk(2, 2).indices, True).flatten(1)


def best_share(scores: Tensor, share: float) -> Tensor:
    """Whether each of scores [out, n] is among so many of its row, one at least, [out, n]."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    count = max(1, round(share * scores.shape[1]))
    return chosen.scatter(1, scores.topk(count, 1).indices, True)


def _best(scores: Tensor, share: float | None) -> Tensor:
    return best_two(scores) if share is None else best_share(scores, share)


def _kept(matrix: Tensor, kept: Tensor, share: float | None) -> TwoOfFour | Masked:
    return two_of_four(matrix, kept) if share is None else masked(matrix, kept)
