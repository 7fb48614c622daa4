"""Preconditioners P and junctions J: `U S V = svd_r(W P)`, `B = U S J`, `A = J^+ V P^+` (LatentLLM
eq. 6-9, table 1, appendix A.2).

The left singular vectors of `W P` are those of `W P^2 W^T`, and `U^T W` is `S V P^+` wherever P is
regular. So `B A = U_r U_r^T W`: no P is ever inverted, and a singular one does no harm (where P^+
would be zero, W is kept as it is).
"""

import torch
from torch import Tensor

from ...forms import BlockDiagonal, IdentityColumns, IdentityRows, Matrix
from ...linalg import cholesky, damped

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
    """`P^2` of a preconditioner, [n, n] float64; None for the identity.

    Table 1, damped as `S + damping * mean(diag S) * I`.

    second: S, or the covariance where means go into a bias [n, n]. absolute: E|x_j| [n], raised to
    exponent for diag_l1.
    """
    if preconditioner == "identity":
        return None
    if preconditioner == "diag_l1":
        return torch.diag(absolute.double() ** (2 * exponent))
    if preconditioner == "diag_l2":
        return torch.diag(second.double().diagonal().clamp_min(0))
    if (
        preconditioner == "diag_hessian"
    ):  # diag((S + l I)^{-1})^{-1/2}; an inverse needs some damping
        return torch.diag(
            1 / torch.cholesky_inverse(cholesky(second, max(damping, 1e-8))).diagonal()
        )
    root = damped(second, damping)
    return root if preconditioner == "root_covariance" else root @ root


def saves_square(junction: str) -> bool:
    """Whether a junction leaves an identity block out: r (d + d') - r^2 numbers instead of r (d
    + d').
    """
    return junction.endswith("identity")


def join(up: Tensor, down: Tensor, scale: Tensor, junction: str) -> tuple[Matrix, Matrix]:
    """The stored B and A of `up @ down` under a junction, exactly equal to it; per head, with the
    heads of B on a diagonal.

    up [heads, s, r] with columns of norm one or so, down [heads, r, n], scale S [heads, r]. Where
    heads is 1, B is a plain tensor or an identity block of its own. The block identity takes its
    columns (rows) by LU with partial pivoting, which keeps the entries near one and divides by no
    pivot, so a singular block is as good as any.
    """
    if junction == "right_identity":
        order, rest = _pivots(down.mT)
        chosen = down.gather(
            2, order[:, None, : down.shape[1]].expand(-1, down.shape[1], -1)
        )  # [heads, r, r], the columns made unit
        return _blocks(up @ chosen), IdentityColumns(rest.mT.contiguous(), order.int())
    if junction == "left_identity":
        order, rest = _pivots(up)
        chosen = up.gather(
            1, order[:, : up.shape[2], None].expand(-1, -1, up.shape[2])
        )  # [heads, r, r], the rows made unit
        return IdentityRows(rest, order.argsort(1).int()), (chosen @ down).flatten(0, 1)
    s = torch.where(scale > LEAST_SCALE * scale.amax(-1, keepdim=True), scale, 1.0)
    s = {"left": s, "right": torch.ones_like(s), "symmetric": s.sqrt()}[junction]
    return _blocks(up * s.unsqueeze(1)), (down / s.unsqueeze(2)).flatten(0, 1)


def _blocks(up: Tensor) -> Matrix:
    return up[0] if len(up) == 1 else BlockDiagonal(up)


def _pivots(m: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that span m, first, and how the others follow: `m[order] = [I; rest] m[order[:r]]`.

    [h, n, r] -> [h, n], [h, n - r, r].

    `m[order] = [L1; L2] U` with unit triangular L1, so `rest = L2 L1^{-1}` whatever the rank of m.
    """
    count, n, rank = m.shape
    packed, swaps, _ = torch.linalg.lu_factor_ex(m)
    order = torch.arange(n, device=m.device).repeat(count, 1)
    every = torch.arange(count, device=m.device)
    for i, j in enumerate(
        swaps.long().unbind(1)
    ):  # row i was exchanged with row j, counted from one
        order[every, j - 1], order[:, i] = order[:, i].clone(), order[every, j - 1].clone()
    rest = torch.linalg.solve_triangular(
        packed[:, :rank], packed[:, rank:], upper=False, left=False, unitriangular=True
    )
    return order, rest


def per_head_identity(up: Tensor, bias: Tensor | None) -> tuple[Tensor, IdentityColumns]:
    """Junctions J_i of the heads (algorithm 1): `up_i = J_i [I, R_i]` without storing I. up [heads,
    s, r] -> J [heads, s, s] and the form.

    Where r < s the head is `J_i [I; 0]` and nothing is stored (eq. 81-84); of the columns to spare
    in J_i one is the bias [heads, s], which so stays in reach, and the others are zero. J may be
    singular.
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
    return (blocks.blocks if isinstance(blocks, BlockDiagonal) else blocks.unsqueeze(0)), form
