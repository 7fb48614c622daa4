"""Narrowing of queries and keys: joint decomposition, losses of rotary pairs, and heads with
partial rotary embeddings.

A partial rotary embedding (Phi, GPT-NeoX) leaves some columns unrotated. They are narrowed to
directions, as in heads without positions. Two directions take the place of a pair of columns.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..layers.layer import Attention
from ..layers.linalg import eigh_descending, roots
from .attention_factors import ColumnOrder
from .costs import qk_cost
from .factors import pooled

# (kv head, unrotated columns [s]) -> squared losses [s], descending, and maps of queries and keys,
# [s, s] each
Solve = Callable[[int, Tensor], tuple[Tensor, Tensor, Tensor]]


def joint_scores(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the squared losses `s^2` [..., d_h] and the maps `V^T K^{1/2}` of queries and
    `V^T K^{-1/2}` of keys, [..., d_h, d_h].

    `V` and `s^2` are the eigenvectors and eigenvalues of `K^{1/2} Q K^{1/2}`. query Q, key K [...,
    d_h, d_h]: second moments, Q summed over the heads of a group. The first r rows of the maps
    minimize E (q . k - q^ . k^)^2 among all maps of rank r, over independent tokens; the minimum is
    the sum of the `s^2` after the first r.
    """
    root, inverse = roots(key)
    squares, v = eigh_descending(root @ query @ root)
    return squares, v.mT @ root, v.mT @ inverse


def unrotated_pairs(a: Attention) -> Tensor | None:
    """Return which pairs of columns are not rotated, [n_kv, qk_size / 2], bool; None if all are."""
    turning = a.pair_frequencies
    return turning == 0 if turning is not None and bool((turning == 0).any()) else None


def unrotated_directions(
    squares: Tensor, unrotated: Tensor, solve: Solve
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return squared losses and maps in which directions replace the unrotated columns.

    squares [n_kv, qk_size]: the squared losses of single columns; unrotated: see `unrotated_pairs`.
    The result has the same shape, with the squared losses of directions in place of those of the
    unrotated columns, and the maps of queries and keys, [n_kv, qk_size, qk_size] each. Directions 2
    i and 2 i + 1 take the place of the unrotated pair i, so that the best come first.
    """
    squares, half = squares.clone(), unrotated.shape[1]
    maps = torch.eye(2 * half, dtype=squares.dtype, device=squares.device).repeat(
        2, len(unrotated), 1, 1
    )  # [2, n_kv, qk_size, qk_size]
    for head, is_unrotated in enumerate(unrotated):
        pairs = is_unrotated.nonzero()  # [p, 1]
        # the same columns in two orders: first halves before second halves, and pair by pair
        columns, targets = (torch.cat((pairs, pairs + half), dim).flatten() for dim in (0, 1))
        losses, *solved_maps = solve(head, columns)
        squares[head, targets] = losses
        for side, solved in zip(maps, solved_maps, strict=True):
            side[head, targets.unsqueeze(1), columns] = solved
    return squares, (maps[0], maps[1])


def joint_blocks(query: Tensor, key: Tensor) -> Solve:
    """Return a function that solves the unrotated columns of a kv head by `joint_scores`.

    query, key [n_kv, qk_size, qk_size]: see `joint_scores`.
    """

    def solve(head: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = columns.unsqueeze(1), columns
        return joint_scores(query[head][block], key[head][block])

    return solve


def sum_pairs(squares: Tensor) -> Tensor:
    """Return squared losses of columns summed over the two columns of a pair, [n_kv, qk_size] ->
    [n_kv, qk_size / 2].
    """
    summed: Tensor = squares.unflatten(-1, (2, -1)).sum(1)
    return summed


def column_order(
    a: Attention,
    losses: Tensor,
    ranking: Tensor,
    maps: tuple[Tensor, Tensor] | None = None,
) -> ColumnOrder:
    """Return columns, or pairs of columns, by descending ranking.

    losses (squared), ranking [n_kv, n].
    """
    order = ranking.sort(dim=-1, descending=True, stable=True).indices
    curves = losses.gather(-1, order).sqrt()
    cost = qk_cost(a, a.qk_size // order.shape[1])
    return ColumnOrder(pooled(curves), cost, curves, order, maps)
