"""Joint VO by the error of the attention's output, summed over the heads (LatentLLM eq. 198-223).

    L = E |sum_i W_o,i W_v,i x'_i - B_o A_o,i B_v,i A_v x'_i|^2   (eq. 206)

x'_i is the attention-weighted input of query head i. The paper predicts the moments of x' from
those of the head outputs (eq. 205). Each head then has only its row space of W_v, components of
different heads that A_v mixes in have no cost, and any r_v >= d_h seems lossless. The code measures
the moments between all heads, of the attention-weighted values `u_i = W_v x'_i` of all value heads:
with `A_v = alpha W_v`, L depends only on these. (So A_v lies in the row space of W_v, which is no
restriction if the value heads fill the width.)

A round solves for B_o and A_o jointly, in closed form, then for B_v, then for alpha; no step
increases L. The Kronecker system of eq. 222 is never formed: conjugate gradients apply its
operator, `sum_ij H_i^T H_j alpha E[u_j u_i^T]`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...layers.linalg import cholesky, conjugate_gradients, dampings, eigh_descending, symmetric

ROUNDS = 8
STEPS = 24  # of conjugate gradients, at most, for each unknown
TOLERANCE = 1e-12  # of the squared preconditioned residual, relative to that of the first step
# Regularization towards the previous weights, which fixes directions without tokens.
RIDGE = 1e-10


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """The quadratic problem in c_i [k], the values of all heads weighted by the attention of query
    head i; the output of head i is `T_g c_i + shift_g`, g its value head.

    weight: W_o [d, n_q s]. second: E[(c, 1) (c, 1)^T] [n_q k + 1, n_q k + 1]. shift [n_kv, s]: the
    bias that v retains, which is not part of c.
    """

    weight: Tensor
    second: Tensor
    shift: Tensor

    @property
    def width(self) -> int:
        """Return k, the number of value heads times their size."""
        return self.shift.numel()

    @property
    def group(self) -> int:
        """Return the number of query heads per value head."""
        return self.weight.shape[1] // self.width

    def by_head(self, per_value_head: Tensor) -> Tensor:
        """Return values of value heads repeated for their query heads, [n_kv, ...] ->
        [n_q, ...].
        """
        return per_value_head.repeat_interleave(self.group, 0)

    def by_group(self, per_head: Tensor) -> Tensor:
        """Return the sum over the query heads of each group, [n_q, ...] -> [n_kv, ...]."""
        groups: Tensor = per_head.unflatten(0, (len(self.shift), -1))
        return groups.sum(1)

    def spread(self, maps: Tensor) -> Tensor:
        """Return `E[T c (c, 1)^T]` for maps T [n_kv, s, k], [n_q s, n_q k + 1]."""
        blocks: Tensor = self.second[:-1].unflatten(0, (-1, self.width))
        return (self.by_head(maps) @ blocks).flatten(0, 1)

    def rows(self, maps: Tensor) -> Tensor:
        """Return `E[(T c + shift) (c, 1)^T]` for maps T [n_kv, s, k], [n_q s, n_q k + 1]."""
        return self.spread(maps) + self.by_head(self.shift).flatten().unsqueeze(1) * self.second[-1]

    def gram(self, rows: Tensor, maps: Tensor) -> Tensor:
        """Return `E[(T c + shift) (T c + shift)^T]` from `rows` of maps T, [n_q s, n_q s]."""
        split: Tensor = rows[:, :-1].unflatten(1, (-1, self.width))
        blocks = split.transpose(0, 1)  # [n_q, n_q s, k]
        states = (blocks @ self.by_head(maps).mT).transpose(0, 1).flatten(1)
        return states + rows[:, -1:] * self.by_head(self.shift).flatten()

    def pull_back(self, left_factor: Tensor, rows: Tensor) -> Tensor:
        """Return the blocks of `left_factor rows` of each head with itself, summed over groups, the
        adjoint of `spread`.

        [n_q s, l], [l, n_q k + 1] -> [n_kv, s, k].
        """
        blocks = rows[:, :-1].unflatten(1, (-1, self.width)).transpose(0, 1)  # [n_q, l, k]
        return self.by_group(left_factor.unflatten(0, (len(blocks), -1)) @ blocks)

    def value_gram(self) -> Tensor:
        """Return `sum E[c_i c_i^T]` over the query heads of each group, [n_kv, k, k]."""
        blocks = self.second[:-1, :-1].unflatten(1, (-1, self.width)).unflatten(0, (-1, self.width))
        return self.by_group(blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1))

    def dense(self) -> Tensor:
        """Return the maps of the dense layer, in which each value head selects its values, [n_kv,
        s, k].
        """
        eye = torch.eye(self.width, dtype=self.second.dtype, device=self.second.device)
        maps: Tensor = eye.unflatten(0, tuple(self.shift.shape))
        return maps


@dataclass(frozen=True, eq=False)
class Solution:
    """out: B_o A_o [d, n_q s]; basis: the orthonormal B_o [d, r_o]; up: B_v [n_kv, s, r_v]; down:
    alpha [r_v, k].
    """

    out: Tensor
    basis: Tensor
    up: Tensor
    down: Tensor

    @property
    def maps(self) -> Tensor:
        """Return T = B_v alpha, [n_kv, s, k]."""
        return self.up @ self.down


def loss(problem: AttentionProblem, solution: Solution) -> float:
    """Return the loss L of a solution (eq. 206)."""
    sides = [(problem.weight, problem.dense()), (solution.out, solution.maps)]
    rows = [problem.rows(maps) for _, maps in sides]
    dense, cross, compressed = (
        (sides[i][0] @ problem.gram(rows[i], sides[j][1]) * sides[j][0]).sum()
        for i, j in ((0, 0), (0, 1), (1, 1))
    )
    return float(dense - 2 * cross + compressed)


def alternate(problem: AttentionProblem, start: Solution, rounds: int = ROUNDS) -> Solution:
    """Return the solution after some rounds from a start. No step increases `loss`."""
    current = start
    for _ in range(rounds):
        current = fit_down(problem, fit_up(problem, fit_out(problem, current)))
    return fit_out(problem, current)


def fit_out(problem: AttentionProblem, current: Solution) -> Solution:
    """Return the solution with optimal B_o and A_o: regression of the output on the values within
    rank r_o (eq. 215, 217; the paper holds B_o fixed).

    A ridge towards the previous product makes the system regular. L plus the weighted distance from
    that product is minimized, so L does not increase.
    """
    rows = problem.rows(current.maps)
    gram = symmetric(problem.gram(rows, current.maps))
    if not bool(gram.diagonal().mean() > 0):
        return current
    ridge = dampings(gram, RIDGE)
    cross = problem.weight @ problem.gram(rows, problem.dense()).mT + ridge * current.out
    fitted = torch.cholesky_solve(cross.mT, cholesky(gram, RIDGE)).mT  # [d, n_q s]
    basis = eigh_descending(fitted @ cross.mT)[1][:, : current.basis.shape[1]]
    return replace(current, out=basis @ (basis.mT @ fitted), basis=basis)


def fit_up(problem: AttentionProblem, current: Solution, steps: int = STEPS) -> Solution:
    """Return the solution with optimal B_v of all heads, given the remaining factors (eq. 216)."""
    inner = current.down @ problem.value_gram() @ current.down.mT
    left_scale, right_scale = (
        torch.stack([cholesky(m) for m in batch]) for batch in (_weights(problem, current), inner)
    )
    directions = Directions(lambda up: up @ current.down, lambda maps: maps @ current.down.mT)
    step = _solve(problem, current, directions, (left_scale, right_scale), steps)
    return replace(current, up=current.up + step)


def fit_down(problem: AttentionProblem, current: Solution, steps: int = STEPS) -> Solution:
    """Return the solution with optimal alpha, given the remaining factors.

    This is the generalized Sylvester equation with the operator
    `sum_ij H_i^T H_j alpha E[u_j u_i^T]` (eq. 222).
    """
    left_scale = cholesky((current.up.mT @ _weights(problem, current) @ current.up).sum(0))
    right_scale = cholesky(problem.value_gram().sum(0))
    directions = Directions(
        lambda down: current.up @ down, lambda maps: (current.up.mT @ maps).sum(0)
    )
    step = _solve(problem, current, directions, (left_scale, right_scale), steps)
    return replace(current, down=current.down + step)


@dataclass(frozen=True)
class Directions:
    """The changes of the maps T that an unknown can make.

    push takes a change of the unknown to a change of the maps [n_kv, s, k]; pull is its adjoint.
    """

    push: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor], Tensor]


def _weights(problem: AttentionProblem, current: Solution) -> Tensor:
    """Return `sum W_o,i^T W_o,i` over the query heads of each group, [n_kv, s, s]."""
    parts = current.out.mT.unflatten(0, (-1, problem.shift.shape[1]))  # [n_q, s, d]
    return problem.by_group(parts @ parts.mT)


def _solve(
    problem: AttentionProblem,
    current: Solution,
    directions: Directions,
    scales: tuple[Tensor, Tensor],
    steps: int,
) -> Tensor:
    """Return the change of an unknown that minimizes L, by preconditioned conjugate gradients.

    scales: Cholesky factors of the two matrices whose Kronecker product approximates the operator.
    """
    left_scale, right_scale = scales
    square = current.out.mT @ current.out
    missing = problem.weight @ problem.rows(problem.dense()) - current.out @ problem.rows(
        current.maps
    )
    start = directions.pull(problem.pull_back(current.out.mT, missing))

    def operator(step: Tensor) -> Tensor:
        return directions.pull(problem.pull_back(square, problem.spread(directions.push(step))))

    def precondition(gradient: Tensor) -> Tensor:
        return torch.cholesky_solve(torch.cholesky_solve(gradient, left_scale).mT, right_scale).mT

    return conjugate_gradients(operator, start, precondition, steps, TOLERANCE)
