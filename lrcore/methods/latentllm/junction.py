"""Preconditioners P and junctions J: `U S V = svd_r(W P)`, `B = U S J`, `A = J^+ V P^+` (LatentLLM
eq. 6-9, table 1, appendix A.2).

The left singular vectors of `W P` are those of `W P^2 W^T`, and `U^T W` equals `S V P^+` if P is
regular. So `B A = U_r U_r^T W`: P is never inverted and may be singular (in directions where P^+
would be zero, W is unchanged).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...layers.forms import BlockDiagonal, IdentityColumns, IdentityRows, Matrix
from ...layers.linalg import EPS, cholesky, column_squares, damped, invert_lower_
from ...system.threads import threads_for

PRECONDITIONERS = (
    "root_covariance",
    "covariance",
    "diag_hessian",
    "diag_l1",
    "diag_l2",
    "identity",
)
JUNCTIONS = ("right_identity", "left_identity", "left", "right", "symmetric")
# A direction whose singular value is below this fraction of the largest is not scaled: division by
# rounding errors would overflow half precision.
MIN_SCALE = 1e-7


def squared_metric(
    preconditioner: str, second: Tensor, absolute: Tensor, exponent: float, damping: float
) -> Tensor | None:
    """Return `P^2` of a preconditioner of table 1, [n, n], float64; None for the identity.

    second [n, n]: S, or the covariance if means move into a bias; damped as
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
    """Return whether a junction omits an identity block: r (d + d') - r^2 numbers instead of r (d +
    d').
    """
    return junction.endswith("identity")


@dataclass(frozen=True, eq=False)
class Pivots:
    """Rows of a matrix m [h, n, k] in an order in which, for every r, the first r rows span all
    rows of the first r columns.

    packed [h, n, k]: the LU factors with partial pivoting of the rows in order [h, n]. Their first
    r columns are those of the first r columns of m. Pivoting keeps the entries near 1 and divides
    by no pivot, so m may be singular.
    """

    order: Tensor
    packed: Tensor

    def first(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return `block` [h, r, r], the first rows of `m[order, :r]`, and `remainder` [h, n - r,
        r]: all rows are `[I; remainder] block`.

        With the unit triangular L1 over L2, `block = L1 U` and `remainder = L2 L1^{-1}`.
        """
        square, below = self.packed[:, :rank, :rank], self.packed[:, rank:, :rank]
        remainder = torch.linalg.solve_triangular(
            square, below, upper=False, left=False, unitriangular=True
        )
        upper = square.triu()
        return upper + square.tril(-1) @ upper, remainder


def pivots(m: Tensor) -> Pivots:
    """Return the order of the rows of m [h, n, k], k <= n, for every number of columns."""
    with threads_for(m):
        packed, swaps, _ = torch.linalg.lu_factor_ex(m)
    orders = [list(range(m.shape[1])) for _ in m]
    for order, exchanged in zip(orders, swaps.tolist(), strict=True):
        for i, j in enumerate(exchanged):  # swap of row i and row j, j counted from 1
            order[i], order[j - 1] = order[j - 1], order[i]
    return Pivots(torch.tensor(orders, device=m.device), packed)


@dataclass(frozen=True, eq=False)
class NestedProduct:
    """`up[:, :, :r] @ down[:, :r]` under a junction, for every rank r; exact for all junctions.

    up [heads, s, k] with columns of norm about 1, down [heads, k, n], scale S [heads, k]. The side
    whose identity block is omitted is None: its pivots contain it.
    """

    up: Tensor | None
    down: Tensor | None
    scale: Tensor
    junction: str
    pivots: Pivots | None

    def at(self, rank: int) -> tuple[Matrix, Matrix]:
        """Return B and A of a rank in their stored forms.

        With several heads, B is block-diagonal over the heads; with a single head, it is a plain
        tensor or contains an identity block.
        """
        up = None if self.up is None else self.up[:, :, :rank]
        down = None if self.down is None else self.down[:, :rank]
        if self.pivots is not None:
            block, remainder = self.pivots.first(rank)
            if up is not None:
                form = IdentityColumns(remainder.mT.contiguous(), self.pivots.order.int())
                return _blocks(up @ block.mT), form
            assert down is not None
            position = self.pivots.order.argsort(1).int()
            return IdentityRows(remainder, position), (block @ down).flatten(0, 1)
        assert up is not None  # no identity block is omitted
        assert down is not None
        s = self.scale[:, :rank]
        s = torch.where(s > MIN_SCALE * s.amax(-1, keepdim=True), s, 1.0)
        s = {"left": s, "right": torch.ones_like(s), "symmetric": s.sqrt()}[self.junction]
        return _blocks(up * s.unsqueeze(1)), (down / s.unsqueeze(2)).flatten(0, 1)


def nested(up: Tensor, down: Tensor, scale: Tensor, junction: str) -> NestedProduct:
    """Return the product of up [heads, s, k] and down [heads, k, n] for every rank, under a
    junction; scale [heads, k].
    """
    if junction == "right_identity":
        return NestedProduct(up, None, scale, junction, pivots(down.mT))
    if junction == "left_identity":
        return NestedProduct(None, down, scale, junction, pivots(up))
    return NestedProduct(up, down, scale, junction, None)


def join(up: Tensor, down: Tensor, scale: Tensor, junction: str) -> tuple[Matrix, Matrix]:
    """Return B and A of a product in their stored forms, `NestedProduct.at` at full rank.

    up [heads, s, r], down [heads, r, n], scale [heads, r].
    """
    return nested(up, down, scale, junction).at(up.shape[2])


def applied(up: Matrix, down: Matrix, x: Tensor) -> Tensor:
    """Return `B A x` of a product in its stored form, x [n]."""
    for matrix in (down, up):
        x = matrix @ x if isinstance(matrix, Tensor) else matrix.apply(x)
    return x


def _blocks(up: Tensor) -> Matrix:
    return up[0] if len(up) == 1 else BlockDiagonal(up)


def per_head_identity(up: Tensor, bias: Tensor | None) -> tuple[Tensor, IdentityColumns]:
    """Return the junctions J_i of the heads (algorithm 1): `up_i = J_i [I, R_i]` without storing I.

    up [heads, s, r] -> J [heads, s, s], which may be singular, and the form that stores R. If r < s
    the head is `J_i [I; 0]` and no R is stored (eq. 81-84). The first spare column of J_i is the
    bias [heads, s], so that the bias lies in its range, and the remaining ones are zero.
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
    assert isinstance(form, IdentityColumns)  # the form of this junction
    if isinstance(blocks, BlockDiagonal):
        return blocks.blocks, form
    assert isinstance(blocks, Tensor)
    return blocks.unsqueeze(0), form
