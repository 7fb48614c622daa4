"""Joint VO on what attention makes of the values (LatentLLM eq. 198-223): the error of the
attention's output, heads summed inside it.

    L = E |sum_i W_o,i W_v,i x'_i - B_o A_o,i B_v,i A_v x'_i|^2, x'_i the input weighted by the
    attention of query head i (eq. 206)

The paper predicts the moments of x' from those of the head outputs (eq. 205). Each head then sees
its own row space of W_v alone, what A_v mixes in from other heads is free, and any r_v >= d_h seems
lossless. Here they are measured, between all heads, in the coordinates `u_i = W_v x'_i` of all
value heads: with `A_v = alpha W_v` that is all that L reads. (A_v so lies in the row space of W_v;
with as many value heads as fill the width, that is no restriction.)

Three turns, each a step down: B_o and A_o together, in closed form; B_v; alpha. The Kronecker
system of eq. 222 is never formed: its operator is `sum_ij H_i^T H_j alpha E[u_j u_i^T]`, and
conjugate gradients apply it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...linalg import cholesky, conjugate_gradients, eigh_descending, symmetric

ROUNDS = 8
STEPS = 24  # of conjugate gradients, at most, in each turn
TOLERANCE = 1e-12  # of the squared preconditioned residual, against that of the first step
RIDGE = (
    1e-10  # towards the weights before a turn: nothing moves along directions that were never seen
)


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """The quadratic problem in c_i [k], the value states of all heads weighted by the attention of
    query head i; it gives `T_g c_i + shift_g`.

    weight W_o [d, n_q s]; second [n_q k + 1, n_q k + 1], of (c, 1); shift [n_kv, s]: the bias that
    v keeps, which is no part of c.
    """

    weight: Tensor
    second: Tensor
    shift: Tensor

    @property
    def width(self) -> int:
        """k: value heads times their size."""
        return self.shift.numel()

    @property
    def group(self) -> int:
        """Query heads per value head."""
        return self.weight.shape[1] // self.width

    def by_head(self, per_value_head: Tensor) -> Tensor:
        """[n_kv, ...] -> [n_q, ...]."""
        return per_value_head.repeat_interleave(self.group, 0)

    def by_group(self, per_head: Tensor) -> Tensor:
        """The heads of a group added up, [n_q, ...] -> [n_kv, ...]."""
        return per_head.unflatten(0, (len(self.shift), -1)).sum(1)

    def spread(self, maps: Tensor) -> Tensor:
        """`E[T c (c, 1)^T]` for maps T [n_kv, s, k]. [n_q s, n_q k + 1]"""
        return (self.by_head(maps) @ self.second[:-1].unflatten(0, (-1, self.width))).flatten(0, 1)

    def rows(self, maps: Tensor) -> Tensor:
        """`E[(T c + shift) (c, 1)^T]`. [n_q s, n_q k + 1]"""
        return self.spread(maps) + self.by_head(self.shift).flatten().unsqueeze(1) * self.second[-1]

    def gram(self, rows: Tensor, maps: Tensor) -> Tensor:
        """`E[(T c + shift) (T c + shift)^T]` from `rows`. [n_q s, n_q s]"""
        blocks = rows[:, :-1].unflatten(1, (-1, self.width)).transpose(0, 1)  # [n_q, n_q s, k]
        return (blocks @ self.by_head(maps).mT).transpose(0, 1).flatten(1) + rows[
            :, -1:
        ] * self.by_head(self.shift).flatten()

    def pulled(self, left: Tensor, rows: Tensor) -> Tensor:
        """The blocks of `left rows` where a head meets itself, groups added up: [n_q s, l], [l,
        n_q k + 1] -> [n_kv, s, k].
        """
        blocks = rows[:, :-1].unflatten(1, (-1, self.width)).transpose(0, 1)  # [n_q, l, k]
        return self.by_group(left.unflatten(0, (len(blocks), -1)) @ blocks)

    def own(self) -> Tensor:
        """`sum E[c_i c_i^T]` over the heads of each group. [n_kv, k, k]"""
        blocks = self.second[:-1, :-1].unflatten(1, (-1, self.width)).unflatten(0, (-1, self.width))
        return self.by_group(blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1))

    def dense(self) -> Tensor:
        """The maps that change nothing: each value head picks its own states. [n_kv, s, k]"""
        eye = torch.eye(self.width, dtype=self.second.dtype, device=self.second.device)
        return eye.unflatten(0, tuple(self.shift.shape))


@dataclass(frozen=True, eq=False)
class Solution:
    """out = B_o A_o [d, n_q s] and the orthonormal B_o, basis [d, r_o]; up B_v [n_kv, s, r_v];
    down alpha [r_v, k].
    """

    out: Tensor
    basis: Tensor
    up: Tensor
    down: Tensor

    @property
    def maps(self) -> Tensor:
        """T = B_v alpha. [n_kv, s, k]"""
        return self.up @ self.down


def lost(problem: AttentionProblem, found: Solution) -> float:
    """L (eq. 206)."""
    sides = [(problem.weight, problem.dense()), (found.out, found.maps)]
    rows = [problem.rows(maps) for _, maps in sides]
    whole, cross, own = (
        (sides[i][0] @ problem.gram(rows[i], sides[j][1]) * sides[j][0]).sum()
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    return float(whole - 2 * cross + own)


def alternate(problem: AttentionProblem, start: Solution, rounds: int = ROUNDS) -> Solution:
    """The rounds from a start. `lost` never rises from turn to turn."""
    found = start
    for _ in range(rounds):
        found = fit_down(problem, fit_up(problem, fit_out(problem, found)))
    return fit_out(problem, found)


def fit_out(problem: AttentionProblem, found: Solution) -> Solution:
    """B_o and A_o together: regression of the output on the values within rank r_o (eq. 215, 217;
    the paper holds B_o fixed).

    A ridge towards the old product makes the system regular. What is minimised is L plus the way
    moved, so L does not rise.
    """
    rows = problem.rows(found.maps)
    gram = symmetric(problem.gram(rows, found.maps))
    ridge = RIDGE * float(gram.diagonal().mean())
    if ridge <= 0:
        return found
    cross = problem.weight @ problem.gram(rows, problem.dense()).mT + ridge * found.out
    fitted = torch.cholesky_solve(cross.mT, cholesky(gram, RIDGE)).mT  # [d, n_q s]
    basis = eigh_descending(fitted @ cross.mT)[1][:, : found.basis.shape[1]]
    return replace(found, out=basis @ (basis.mT @ fitted), basis=basis)


def fit_up(problem: AttentionProblem, found: Solution, steps: int = STEPS) -> Solution:
    """B_v of all heads, given the rest (eq. 216)."""
    inner = found.down @ problem.own() @ found.down.mT
    left, right = (
        torch.stack([cholesky(m) for m in batch]) for batch in (_weights(problem, found), inner)
    )
    step = _solve(
        problem,
        found,
        lambda up: up @ found.down,
        lambda maps: maps @ found.down.mT,
        (left, right),
        steps,
    )
    return replace(found, up=found.up + step)


def fit_down(problem: AttentionProblem, found: Solution, steps: int = STEPS) -> Solution:
    """alpha, given the rest: the generalised Sylvester equation
    `sum_ij H_i^T H_j alpha E[u_j u_i^T] = ...` (eq. 222).
    """
    left = cholesky((found.up.mT @ _weights(problem, found) @ found.up).sum(0))
    right = cholesky(problem.own().sum(0))
    step = _solve(
        problem,
        found,
        lambda down: found.up @ down,
        lambda maps: (found.up.mT @ maps).sum(0),
        (left, right),
        steps,
    )
    return replace(found, down=found.down + step)


def _weights(problem: AttentionProblem, found: Solution) -> Tensor:
    """`sum W_o,i^T W_o,i` over the heads of each group. [n_kv, s, s]"""
    parts = found.out.mT.unflatten(0, (-1, problem.shift.shape[1]))  # [n_q, s, d]
    return problem.by_group(parts @ parts.mT)


def _solve(
    problem: AttentionProblem,
    found: Solution,
    push: Callable[[Tensor], Tensor],
    pull: Callable[[Tensor], Tensor],
    scales: tuple[Tensor, Tensor],
    steps: int,
) -> Tensor:
    """The step to the least L over what `push` makes a change of the maps; `pull` is its adjoint.

    scales: Cholesky factors of the matrices on both sides that the operator is close to.
    """
    left, right = scales
    square = found.out.mT @ found.out
    missing = problem.weight @ problem.rows(problem.dense()) - found.out @ problem.rows(found.maps)

    def operator(step: Tensor) -> Tensor:
        return pull(problem.pulled(square, problem.spread(push(step))))

    def precondition(gradient: Tensor) -> Tensor:
        return torch.cholesky_solve(torch.cholesky_solve(gradient, left).mT, right).mT

    return conjugate_gradients(
        operator, pull(problem.pulled(found.out.mT, missing)), precondition, steps, TOLERANCE
    )
