"""Preconditioners P and junctions J: `U S V = svd_r(W P)`, `B = U S J`, `A = J^+ V P^+` (LatentLLM
eq. 6-9, table 1, appendix A.2).

The left singular vectors of `W P` are those of `W P^2 W^T`, and `U^T W` equals `S V P^+` where P is
regular. So `B A = U_r U_r^T W`: P is never inverted and may be singular (where P^+ would be zero, W
is kept as it is).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...forms import BlockDiagonal, IdentityColumns, IdentityRows, Matrix
from ...linalg import EPS, cholesky, column_squares, damped, invert_lower_
from ...threads import threads_for

PRECONDITIONERS = (
    "root_covariance",
    "covariance",
    "diag_hessian",
    "diag_l1",
    "diag_l2",
    "identity",
)
JUNCTIONS = ("right_identity", "left_identity", "left", "right", "symmetric")
# A direction whose singular value is below this share of the largest keeps its scale: dividing by
# rounding would overflow half precision.
LEAST_SCALE = 1e-7


def squared_metric(
    preconditioner: str, second: Tensor, absolute: Tensor, exponent: float, damping: float
) -> Tensor | None:
    """`P^2` of a preconditioner of table 1, [n, n], float64; None for the identity.

    second [n, n]: S, or the covariance where means go into a bias; damped as
    `S + damping * mean(diag S) * I`. absolute [n]: E|x_j|, raised to exponent for diag_l1.
    """
    if preconditioner == "identity":
        return None
    if preconditioner == "diag_l1":
        return torch.diag(absolute.double() ** (2 * exponent))
    if preconditioner == "diag_l2":
        return torch.diag(second.double().diagonal().clamp_min(0))
    if preconditioner == "diag_hessian":  # diag((S + l I)^{-1})^{-1/2}
        lower = cholesky(damped(second, max(damping, 1e-8)), EPS)  # an inverse needs some damping
        return torch.diag(1 / column_squares(invert_lower_(lower)))
    root = damped(second, damping)
    return root if preconditioner == "root_covariance" else root @ root


def saves_square(junction: str) -> bool:
    """Whether a junction leaves an identity block out: r (d + d') - r^2 numbers instead of
    r (d + d').
    """
    return junction.endswith("identity")


@dataclass(frozen=True, eq=False)
class Pivots:
    """Rows of a matrix m [h, n, k] in an order in which, for every r, the first r span all rows of
    its first r columns.

    packed [h, n, k]: the LU factors with partial pivoting of the rows in order [h, n]. Their first
    r columns are those of the first r columns of m. Pivoting keeps the entries near one and divides
    by no pivot, so m may be singular.
    """

    order: Tensor
    packed: Tensor

    def first(self, rank: int) -> tuple[Tensor, Tensor]:
        """`block` [h, r, r], the first rows of `m[order, :r]`, and `rest` [h, n - r, r]: all of
        them are `[I; rest] block`.

        With the unit triangular L1 over L2, `block = L1 U` and `rest = L2 L1^{-1}`.
        """
        square, below = self.packed[:, :rank, :rank], self.packed[:, rank:, :rank]
        rest = torch.linalg.solve_triangular(
            square, below, upper=False, left=False, unitriangular=True
        )
        upper = square.triu()
        return upper + square.tril(-1) @ upper, rest


def pivots(m: Tensor) -> Pivots:
    """The order of the rows of m [h, n, k], k <= n, for every number of columns."""
    with threads_for(m):
        packed, swaps, _ = torch.linalg.lu_factor_ex(m)
    orders = [list(range(m.shape[1])) for _ in m]
    for order, exchanged in zip(orders, swaps.tolist(), strict=True):
        for i, j in enumerate(exchanged):  # row i with row j, which counts from one
            order[i], order[j - 1] = order[j - 1], order[i]
    return Pivots(torch.tensor(orders, device=m.device), packed)


@dataclass(frozen=True, eq=False)
class NestedProduct:
    """`up[:, :, :r] @ down[:, :r]` under a junction, for every rank r; exactly, whatever the
    junction.

    up [heads, s, k] with columns of norm about one, down [heads, k, n], scale S [heads, k]. The
    side that an identity block is left out of is None: its pivots hold all of it.
    """

    up: Tensor | None
    down: Tensor | None
    scale: Tensor
    junction: str
    pivots: Pivots | None

    def at(self, rank: int) -> tuple[Matrix, Matrix]:
        """B and A of a rank as they are stored. With several heads, B is block-diagonal over the
        heads; with one, it is a plain tensor, or holds an identity block.
        """
        up = None if self.up is None else self.up[:, :, :rank]
        down = None if self.down is None else self.down[:, :rank]
        if self.pivots is not None:
            block, rest = self.pivots.first(rank)
            if up is not None:
                form = IdentityColumns(rest.mT.contiguous(), self.pivots.order.int())
                return _blocks(up @ block.mT), form
            assert down is not None
            place = self.pivots.order.argsort(1).int()
            return IdentityRows(rest, place), (block @ down).flatten(0, 1)
        assert up is not None  # neither is left out
        assert down is not None
        s = self.scale[:, :rank]
        s = torch.where(s > LEAST_SCALE * s.amax(-1, keepdim=True), s, 1.0)
        s = {"left": s, "right": torch.ones_like(s), "symmetric": s.sqrt()}[self.junction]
        return _blocks(up * s.unsqueeze(1)), (down / s.unsqueeze(2)).flatten(0, 1)


def nested(up: Tensor, down: Tensor, scale: Tensor, junction: str) -> NestedProduct:
    """The product of up [heads, s, k] and down [heads, k, n] for every rank, under a junction;
    scale [heads, k].
    """
    if junction == "right_identity":
        return NestedProduct(up, None, scale, junction, pivots(down.mT))
    if junction == "left_identity":
        return NestedProduct(None, down, scale, junction, pivots(up))
    return NestedProduct(up, down, scale, junction, None)


def join(up: Tensor, down: Tensor, scale: Tensor, junction: str) -> tuple[Matrix, Matrix]:
    """B and A of one product as they are stored, `NestedProduct.at` its whole rank: up
    [heads, s, r], down [heads, r, n], scale [heads, r].
    """
    return nested(up, down, scale, junction).at(up.shape[2])


def applied(up: Matrix, down: Matrix, x: Tensor) -> Tensor:
    """`B A x` of a product as it is stored, x [n]."""
    for matrix in (down, up):
        x = matrix @ x if isinstance(matrix, Tensor) else matrix.apply(x)
    return x


def _blocks(up: Tensor) -> Matrix:
    return up[0] if len(up) == 1 else BlockDiagonal(up)


def per_head_identity(up: Tensor, bias: Tensor | None) -> tuple[Tensor, IdentityColumns]:
    """Junctions J_i of the heads (algorithm 1): `up_i = J_i [I, R_i]` without storing I.

    up [heads, s, r] -> J [heads, s, s], which may be singular, and the form that stores R. Where
    r < s the head is `J_i [I; 0]` and nothing is stored (eq. 81-84). Of the spare columns of J_i
    one is the bias [heads, s], so that the bias lies in its range, and the others are zero.
    """
    heads, size, rank = up.shape
    if rank < size:
        order = torch.arange(rank, dtype=torch.int32, device=up.device).repeat(heads, 1)
        spare = up.new_zeros(heads, size, size - rank)
        if bias is not None:
            spare[:, :, 0] = bias
        return torch.cat((up, spare), 2), IdentityColumns(up.new_empty(heads, size, 0), order)
    eye = torch.eye(size, dtype=up.dtype, device=up.device).expand(heads, -1, -1)
    blocks, form = join(eye, up, up.new_ones(heads, size), "right_identity")
    assert isinstance(form, IdentityColumns)  # as this junction stores it
    if isinstance(blocks, BlockDiagonal):
        return blocks.blocks, form
    assert isinstance(blocks, Tensor)
    return blocks.unsqueeze(0), form
