"""Joint VO by the error of the attention's output (LatentLLM eq. 198-223): the problem from the
moments of a layer, and the slot.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...layers.layer import Attention, Layer
from ...layers.linalg import eigh_descending, pseudo_inverse
from ...layers.statistics import Moments
from ..factors import moved_bias
from .attention_solver import AttentionProblem, Solution, alternate
from .joint import JointHeads, joint_vo

FLOOR = 1e-9  # of the eigenvalues, as a fraction of their mean


@dataclass(frozen=True, eq=False)
class AttentionHeads(JointHeads):
    """V and O by the error of the attention's output. The rounds start from the solution of
    `JointHeads` (eq. 184-188), and their error is never larger.

    values: the loss curve of that solution. means [n_q, k]: of the attention-weighted values, if
    means move into the bias of o; else None. inverse: W_v^+ [d, k].
    """

    problem: AttentionProblem
    means: Tensor | None
    inverse: Tensor

    def start(self, layer: Layer, rank: int) -> Solution:
        """Return the solution of joint VO at a rank."""
        left_factors, right_factors = self._solved(rank)
        # exact, since A_v lies in the row space of W_v
        down = right_factors[1] @ self.inverse
        return Solution(
            (left_factors[0].flatten(0, 1) @ left_factors[1]).mT,
            left_factors[1].mT,
            right_factors[0],
            down,
        )

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        best = alternate(self.problem, self.start(layer, rank))
        left_factors = (best.out.mT @ best.basis).unflatten(0, (a.n_q, -1)), best.basis.mT
        right_factors = best.up, best.down @ a.v.weight.double()
        if self.means is None:
            return self._store_vo(layer, left_factors, right_factors, a.v.bias, a.o.bias)
        bias = 0 if a.v.bias is None else a.v.bias.double()
        dense, small = (
            (self.problem.by_head(maps) @ means.unsqueeze(-1)).flatten()
            for maps, means in ((self.problem.dense(), self.means), (best.maps, self.means - bias))
        )
        o_bias = moved_bias(a.o, a.o.weight.double() @ dense - best.out @ small)
        return self._store_vo(layer, left_factors, right_factors, None, o_bias)


def attention_aware_vo(
    a: Attention, metric: Tensor | None, mean: Tensor | None, junction: str, moments: Moments
) -> AttentionHeads:
    """Return the factor of joint VO with the loss of eq. 206, starting from `joint_vo` with the
    same arguments: metric [d, d] and mean [d], or None.

    Reads second and mean of the tap `weighted_values`.
    """
    start = joint_vo(a, metric, mean, junction)
    means = moments.mean("weighted_values").unflatten(0, (a.n_q, -1))
    return AttentionHeads(
        **vars(start),
        problem=attention_problem(a, moments, mean is not None),
        means=None if mean is None else means,
        inverse=pseudo_inverse(a.v.weight),
    )


def attention_problem(a: Attention, moments: Moments, centered: bool) -> AttentionProblem:
    """Return the problem of the solver from the moments of the attention-weighted values, centered
    or without the bias that v retains.

    Rounding leaves negative eigenvalues, along which the loss would decrease without bound; they
    are raised to small positive values.
    """
    mean = moments.mean("weighted_values")
    shift = torch.zeros_like(mean[: a.n_kv * a.v_size])
    if not centered and a.v.bias is not None:
        shift = a.v.bias.to(shift)
    removed = mean if centered else shift.repeat(a.n_q)
    mean_c = torch.cat((mean - removed, mean.new_ones(1)))  # of (c, 1)
    values, vectors = eigh_descending(moments.centered("weighted_values"))
    second = torch.outer(mean_c, mean_c)
    second[:-1, :-1] += (vectors * (values + FLOOR * values.mean())) @ vectors.mT
    return AttentionProblem(a.o.weight.double(), second, shift.unflatten(0, (a.n_kv, -1)))
