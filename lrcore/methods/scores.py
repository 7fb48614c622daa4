"""The scores of attention, narrowed: the joint decomposition of queries and keys, rotary pairs by
what they lose, and heads of which only a part turns.

A partial rotary embedding (Phi, GPT-NeoX) leaves columns that no position turns. They are narrowed
as heads without positions are, to directions; two of those take the place of a pair of columns.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..layer import Attention
from ..linalg import eigh_descending, roots
from .attention_factors import ColumnOrder
from .costs import qk_cost
from .factors import pooled

# The squared losses [s], descending, and the maps of queries and keys [s, s] of the still columns
# [s] of a kv head.
Solve = Callable[[int, Tensor], tuple[Tensor, Tensor, Tensor]]


def joint_scores(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared losses `s^2` [..., d_h] and maps `V^T K^{1/2}`, `V^T K^{-1/2}` of queries and keys,
    [..., d_h, d_h]: `V`, `s^2` are the eigenvectors and values of `K^{1/2} Q K^{1/2}`.

    query Q, key K [..., d_h, d_h]: second moments; Q summed over the heads of a group. The first r
    rows of the maps leave the least E (q . k - q^ . k^)^2 of all of rank r, over independent
    tokens: the sum of the `s^2` after r.
    """
    root, inverse = roots(key)
    squares, v = eigh_descending(root @ query @ root)
    return squares, v.mT @ root, v.mT @ inverse


def still_pairs(a: Attention) -> Tensor | None:
    """Which pairs of columns no position turns, [n_kv, qk_size / 2]; None where there is none."""
    turning = a.turning
    return turning == 0 if turning is not None and bool((turning == 0).any()) else None


def still_directions(
    squares: Tensor, still: Tensor, solve: Solve
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The squared losses of single columns [n_kv, qk_size] with those of directions in the place of
    still columns, and the maps of queries and keys there, [n_kv, qk_size, qk_size] each.

    still: see `still_pairs`. Directions 2 i and 2 i + 1 stand where the still pair i stood, so that
    the best come first.
    """
    squares, half = squares.clone(), still.shape[1]
    maps = torch.eye(2 * half, dtype=squares.dtype, device=squares.device).repeat(
        2, len(still), 1, 1
    )
    for head, own in enumerate(still):
        pairs = own.nonzero()
        columns, places = (torch.cat((pairs, pairs + half), dim).flatten() for dim in (0, 1))
        found = solve(head, columns)
        squares[head, places] = found[0]
        for side, one in zip(maps, found[1:], strict=True):
            side[head, places.unsqueeze(1), columns] = one
    return squares, (maps[0], maps[1])


def joint_blocks(query: Tensor, key: Tensor) -> Solve:
    """The still columns of a kv head by `joint_scores`. query, key [n_kv, qk_size, qk_size]: see
    there.
    """

    def solve(head: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = columns.unsqueeze(1), columns
        return joint_scores(query[head][block], key[head][block])

    return solve


def by_pairs(squares: Tensor) -> Tensor:
    """Squared losses of columns, [n_kv, qk_size], summed over the two of a pair."""
    summed: Tensor = squares.unflatten(-1, (2, -1)).sum(1)
    return summed


def ordered(
    a: Attention,
    losses: Tensor,
    ranking: Tensor,
    maps: tuple[Tensor, Tensor] | None = None,
) -> ColumnOrder:
    """Columns, or pairs of them, by descending ranking. losses, squared, and ranking [n_kv, n]."""
    order = ranking.sort(dim=-1, descending=True, stable=True).indices
    kept = losses.gather(-1, order).sqrt()
    cost = qk_cost(a, a.qk_size // order.shape[1])
    return ColumnOrder(pooled(kept), cost, kept, order, maps)
