"""Joint UD: up and down of a ReLU MLP, factorized for the output of the MLP (LatentLLM section 4.3,
appendix H, after SparseLLM).

With auxiliary z and a in addition to the tokens x and the dense outputs y, the loss is
`alpha |U x + b - z|^2 + beta |a - relu(z)|^2 + gamma |D a + c - y|^2` (eq. 20, 227), and each step
minimizes it in one unknown. alpha, beta and gamma are 1. The tokens are a sample, so each fit has a
prior from the moments of the complete calibration, `PRIOR |(W^ - W) C^{1/2}|^2`: it makes the fits
unique with fewer tokens than dimensions and does not change the remaining steps.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...layers.forms import cast
from ...layers.layer import Layer, LowRank, Projection
from ...layers.linalg import cholesky, whitened_svd
from ...layers.spectra import Cost
from ..factors import mlp_of
from .junction import join
from .local import StackedMatrices, factored_size

ALPHA = BETA = GAMMA = 1.0
ROUNDS = 4  # section 5
PRIOR = 1.0
DAMPING = 1e-10


@dataclass(frozen=True, eq=False)
class Fit:
    """A projection of rank r: `y = up (down x) + bias`.

    up [out, r] orthonormal; values [r]: singular values in the metric of the fit.
    """

    up: Tensor
    down: Tensor
    bias: Tensor
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.down.mT @ self.up.mT + self.bias


@dataclass(frozen=True, eq=False)
class Dense:
    """A dense projection, weight [out, in], and the moments of its input.

    bias [out], zero if missing. second [in, in]: the covariance if the bias may change (then
    centered is True), the second moment otherwise.
    """

    weight: Tensor
    bias: Tensor
    second: Tensor
    centered: bool


def fit(dense: Dense, x: Tensor, target: Tensor, rank: int) -> Fit:
    """Return the projection of a rank that minimizes
    `mean |W^ x + b^ - target|^2 + PRIOR |(W^ - W) C^{1/2}|^2`, by an SVD of the effective weight
    (appendix H).

    x [l, in], target [l, out]. The paper's `target x^+` is replaced by the dense weight plus a
    correction from the tokens.
    """
    x_mean = x.mean(0) if dense.centered else x.new_zeros(x.shape[1])
    offset = target.mean(0) if dense.centered else dense.bias
    x, gap = x - x_mean, target - offset
    metric = x.mT @ x / len(x) + PRIOR * dense.second
    cross = (gap - x @ dense.weight.mT).mT @ x / len(x)
    effective = dense.weight + torch.cholesky_solve(cross.mT, cholesky(metric, DAMPING)).mT
    up, values, down = whitened_svd(effective, metric)
    up, down = up[:, :rank], down[:rank]
    return Fit(up, down, offset - up @ (down @ x_mean), values[:rank])


def best_hidden(down: Fit, z: Tensor, y: Tensor) -> Tensor:
    """Return `(gamma D^T D + beta I)^{-1} (beta relu(z) + gamma D^T (y - c))`, eq. 21, by an r x r
    solve.

    z [l, d_f], y [l, d] -> a [l, d_f].
    """
    start = torch.relu(z)
    gram = down.down @ down.down.mT
    lower = torch.linalg.cholesky(
        gram + BETA / GAMMA * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    )
    gap = (y - down.bias) @ down.up - start @ down.down.mT  # [l, r]; up is orthonormal
    return start + torch.cholesky_solve(gap.mT, lower).mT @ down.down


def best_preactivation(linear: Tensor, a: Tensor) -> Tensor:
    """Return z of eq. 22, entry by entry: the better of `min(z_-, 0)` and
    `max((alpha z_- + beta a) / (alpha + beta), 0)`, z_- = linear.

    linear [l, d_f], a [l, d_f] -> z [l, d_f].
    """
    negative = linear.clamp_max(0)
    positive = ((ALPHA * linear + BETA * a) / (ALPHA + BETA)).clamp_min(0)

    def loss(z: Tensor) -> Tensor:
        return ALPHA * (z - linear) ** 2 + BETA * (a - z.clamp_min(0)) ** 2

    return torch.where(loss(negative) < loss(positive), negative, positive)


def alternate(
    up: Dense, down: Dense, x: Tensor, rank: int, rounds: int = ROUNDS
) -> tuple[Fit, Fit]:
    """Return both projections after some rounds on the tokens x [l, d]; without rounds, each is
    fitted to the dense activations.
    """
    z = x @ up.weight.mT + up.bias
    a = torch.relu(z)
    y = a @ down.weight.mT + down.bias
    small_up, small_down = fit(up, x, z, rank), fit(down, a, y, rank)
    for _ in range(rounds):
        a = best_hidden(small_down, z, y)
        z = best_preactivation(small_up(x), a)
        small_up, small_down = fit(up, x, z, rank), fit(down, a, y, rank)
    return small_up, small_down


@dataclass(frozen=True, eq=False)
class JointMLP:
    """up and down of a ReLU MLP with a common rank; `truncate` runs the rounds on the sample [l,
    d].

    values: the loss curve before the first round, from those of up and down solved separately,
    weighted by alpha and gamma.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    up: Dense
    down: Dense
    sample: Tensor
    junction: str

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        up, down = alternate(self.up, self.down, self.sample, rank)
        mlp = mlp_of(layer)
        return layer.with_matrices(
            up=self._stored(mlp.up, self.up, up),
            down=self._stored(mlp.down, self.down, down),
        )

    def _stored(self, old: Projection, dense: Dense, small: Fit) -> LowRank:
        up, down = join(
            small.up.unsqueeze(0), small.down.unsqueeze(0), small.values.unsqueeze(0), self.junction
        )
        bias = small.bias if old.bias is not None or dense.centered else None
        dtype = old.weight.dtype
        return LowRank(cast(down, dtype), cast(up, dtype), None if bias is None else bias.to(dtype))


def joint_ud(
    layer: Layer,
    separate: dict[str, StackedMatrices],
    seconds: dict[str, Tensor],
    sample: Tensor,
    junction: str,
) -> JointMLP:
    """Return the factor of up and down jointly.

    separate: the separate solutions of both, whose loss curves and costs are added. seconds [in,
    in] each: the covariance of the input if the bias may change, its second moment otherwise.
    sample [l, d]: tokens of the MLP's input.
    """
    values = (ALPHA * separate["up"].values ** 2 + GAMMA * separate["down"].values ** 2).sqrt()
    costs = [separate[name].cost for name in ("up", "down")]
    size = sum(mlp_of(layer).up.weight.shape)
    curve = tuple(2 * factored_size(rank, size, 0, junction) for rank in range(1, costs[0].full))
    cost = replace(
        costs[0],
        dense=sum(c.dense for c in costs),
        fixed=sum(c.fixed for c in costs),
        per_rank=2 * size,
        curve=curve,
        idle_fixed=sum(c.idle_fixed for c in costs),
        idle_dense=sum(c.idle_dense for c in costs),
    )
    dense = {}
    for name in ("up", "down"):
        p = layer.matrices()[name]
        weight = p.weight.double()
        bias = weight.new_zeros(len(weight)) if p.bias is None else p.bias.double()
        dense[name] = Dense(weight, bias, seconds[name], separate[name].mean is not None)
    return JointMLP(values, cost, None, dense["up"], dense["down"], sample.double(), junction)
