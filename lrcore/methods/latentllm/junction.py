"""Preconditioners P and junctions J: `U S V = svd_r(W P)`, `B = U S J`, `A = J^+ V P^+` (LatentLLM
eq. 6-9, table 1, appendix A.2).

The left singular vectors of `W P` are those of `W P^2 W^T`, and `U^T W` equals `S V P^+` where P is
regular. So `B A = U_r U_r^T W`: P is never inverted and may be singular (where P^+ would be zero, W
is kept as it is).
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
        lower = cholesky(second, max(damping, 1e-8))  # an inverse needs some damping
        return torch.diag(1 / torch.cholesky_inverse(lower).diagonal())
    root = damped(second, damping)
    return root if preconditioner == "root_covariance" else root @ root


def saves_square(junction: str) -> bool:
    """Whether a junction leaves an identity block out: r (d + d') - r^2 numbers instead of
    r (d + d').
    """
    return junction.endswith("identity")


def join(up: Tensor, down: Tensor, scale: Tensor, junction: str) -> tuple[Matrix, Matrix]:
    """B and A as they are stored under a junction; their product equals `up @ down` exactly.

    up [heads, s, r] with columns of norm about one, down [heads, r, n], scale S [heads, r]. With
    several heads, B is block-diagonal over the heads; with one, it is a plain tensor, or holds an
    identity block. The columns (rows) of the identity block are chosen by LU with partial pivoting,
    which keeps the entries near one and divides by no pivot, so the block may be singular.
    """
    if junction == "right_identity":
        order, rest = _pivots(down.mT)
        columns = order[:, None, : down.shape[1]].expand(-1, down.shape[1], -1)
        block = down.gather(2, columns)  # [heads, r, r], which becomes the identity
        return _blocks(up @ block), IdentityColumns(rest.mT.contiguous(), order.int())
    if junction == "left_identity":
        order, rest = _pivots(up)
        rows = order[:, : up.shape[2], None].expand(-1, -1, up.shape[2])
        block = up.gather(1, rows)  # [heads, r, r], which becomes the identity
        return IdentityRows(rest, order.argsort(1).int()), (block @ down).flatten(0, 1)
    s = torch.where(scale > LEAST_SCALE * scale.amax(-1, keepdim=True), scale, 1.0)
    s = {"left": s, "right": torch.ones_like(s), "symmetric": s.sqrt()}[junction]
    return _blocks(up * s.unsqueeze(1)), (down / s.unsqueeze(2)).flatten(0, 1)


def _blocks(up: Tensor) -> Matrix:
    return up[0] if len(up) == 1 else BlockDiagonal(up)


def _pivots(m: Tensor) -> tuple[Tensor, Tensor]:
    """An order of the rows of m in which the first r span all: `m[order] = [I; rest] m[order[:r]]`.

    m [h, n, r] -> order [h, n], rest [h, n - r, r]. With the LU factors `m[order] = [L1; L2] U`, L1
    unit triangular, `rest = L2 L1^{-1}` whatever the rank of m.
    """
    count, n, rank = m.shape
    packed, swaps, _ = torch.linalg.lu_factor_ex(m)
    orders = [list(range(n)) for _ in range(count)]
    for order, exchanged in zip(orders, swaps.tolist(), strict=True):
        for i, j in enumerate(exchanged):  # row i with row j, which counts from one
            order[i], order[j - 1] = order[j - 1], order[i]
    rest = torch.linalg.solve_triangular(
        packed[:, :rank], packed[:, rank:], upper=False, left=False, unitriangular=True
    )
    return torch.tensor(orders, device=m.device), rest


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
