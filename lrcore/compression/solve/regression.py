"""Linear regressions of the refit: sums over tokens, ridge solutions and targets.

The targets of the last projection of an attention or an MLP bring the residual stream of the
compressed model to that of the dense model. In most families the output is added unchanged, so the
target is the difference t: the dense stream after the component minus the compressed stream before
it. If the output is normalized first,

    N(c) = g c / s(c), s the root mean square of c and g the gains of the norm,

many c give t. The target is the c with a distance from c_d, the output of the dense projection,
equal to that of t from N(c_d), with s fixed at s(c_d):

    c = c_d + s(c_d) (t - N(c_d)) / g.

An error of c then counts by 1 / s(c_d). If gains are near zero, c stays near c_d.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.forms import Quantized, dense, quantize
from ...layers.layer import Linear, LowRank, Projection, Stored
from ...layers.linalg import cholesky, sum_float64, to_float64
from ...layers.statistics import SecondMomentSum, at_least_float32, centered
from ...models.architectures import norm_after, residual_multiplier

# Share of the diagonal that pulls towards the closed-form solution. Without it the refit overfits a
# small calibration set.
RIDGE = 0.3


@dataclass
class Regression:
    """Weighted sums over tokens for a regression of y [n, out] on x [n, in], float64.

    xx: a SecondMomentSum while rows are added, then [in, in].
    """

    count: float = 0.0
    x: Any = 0.0  # a float until the first batch, then a tensor
    y: Any = 0.0
    yx: Any = 0.0
    xx: Any = field(default_factory=SecondMomentSum)

    def add(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch x [..., in], y [..., out] of tokens with weights [...] >= 0, 1 by default.

        Products in float32 at least, sums in float64.
        """
        x, y = at_least_float32(x.flatten(0, -2)), at_least_float32(y.flatten(0, -2))
        column = None if weights is None else weights.flatten().to(x.dtype).unsqueeze(1)
        self.count += len(x) if column is None else float(sum_float64(column))
        (x, total_x, mean_x), (y, total_y, mean_y) = centered(x, column), centered(y, column)
        self.x, self.y = self.x + total_x, self.y + total_y
        self.xx.add(x, mean_x)
        self.yx = self.yx + to_float64(y.mT @ x).addr_(mean_y, mean_x)

    def through(self, projection: Projection) -> "Regression":
        """Return the sums with a projection's output for y instead of y; add no rows afterwards."""
        yx = projection.weight.double() @ self.yx
        if projection.bias is not None:
            yx = yx + torch.outer(projection.bias.double(), self.x)
        return replace(self, xx=self.seconds(), y=self.sum_through(projection), yx=yx)

    def sum_through(self, projection: Projection) -> Tensor:
        """Return the sum of a projection's outputs for y, [out]."""
        total: Tensor = projection.weight.double() @ self.y
        return total if projection.bias is None else total + self.count * projection.bias.double()

    def seconds(self) -> Tensor:
        """Return the sum of x x^T, [in, in]; add no rows afterwards."""
        if isinstance(self.xx, SecondMomentSum):
            self.xx = self.xx.total()
        total: Tensor = self.xx
        return total

    def solve(self, start: Linear | Stored, ridge: float = RIDGE) -> Linear:
        """Return the ridge solution towards `start`, with a bias if start has one.

        ridge >= 0: share of the diagonal of E[x x^T].
        """
        weight = self.solution(start.weight, ridge, start.bias is not None).weight
        dtype = start.weight.dtype
        return Linear(weight.to(dtype), self.bias(weight, start, dtype))

    def bias(self, weight: Tensor, start: Projection, dtype: torch.dtype) -> Tensor | None:
        """Return the best bias [out] for a weight [out, in]; None if `start` has none."""
        if start.bias is None:
            return None
        bias: Tensor = (self.y - weight @ self.x) / self.count
        return bias.to(dtype)

    def solution(self, start: Tensor | None, ridge: float, centered: bool) -> "Solution":
        """Return the ridge solution towards a weight [out, in], None for the identity.

        centered: whether means are subtracted, which a bias requires.
        """
        xx, yx = self.seconds() / self.count, self.yx / self.count
        if centered:
            mean_x, mean_y = self.x / self.count, self.y / self.count
            xx.addr_(mean_x, mean_x, alpha=-1)
            yx.addr_(mean_y, mean_x, alpha=-1)
        if start is None:
            weight, missing = torch.eye(len(xx), dtype=xx.dtype, device=xx.device), yx - xx
        else:
            weight = start.double()
            missing = yx - weight @ xx
        # scale all inputs to the same size: the damping of the Cholesky factor must not hide small
        # inputs among massive activations
        squares = xx.diagonal().clone()
        scale = torch.where(squares > 0, squares, 1).rsqrt()
        xx.mul_(scale).mul_(scale.unsqueeze(1)).diagonal().mul_(1 + ridge)
        # the step from W_0, zero for inputs without an error
        step = torch.cholesky_solve((missing * scale).mT, cholesky(xx)).mT
        return Solution(weight + step * scale, xx, scale)


@dataclass(frozen=True, eq=False)
class Solution:
    """The solution of a ridge regression, float64.

    weight [out, in]; second [in, in]: the cost of an error of the weight, the second moment of the
    inputs times `scale` [in], with the ridge on the diagonal.
    """

    weight: Tensor
    second: Tensor
    scale: Tensor


class Readers:
    """Refit of projections that read the same input x, on their outputs for the dense model's x'.

    The ridge solution towards W of `W x'` on x is `W Z`, with Z the solution towards the identity
    of x' on x. It is computed once, for any number of projections and outputs.
    """

    def __init__(self, fit: Regression) -> None:
        """Store the regression of x' on x, [in] both; add no rows to it afterwards."""
        self.fit = fit
        self._solutions: dict[bool, Tensor] = {}  # Z [in, in], by whether means are subtracted

    def refit(self, projection: Linear) -> Linear:
        """Return the result of `refit_projection` for `fit.through(projection)`."""
        centered = projection.bias is not None
        if centered not in self._solutions:
            self._solutions[centered] = self.fit.solution(None, RIDGE, centered).weight
        weight, dtype = (
            projection.weight.double() @ self._solutions[centered],
            projection.weight.dtype,
        )
        fit = replace(self.fit, y=self.fit.sum_through(projection))
        return Linear(weight.to(dtype), fit.bias(weight, projection, dtype))


def can_refit(projection: Projection) -> bool:
    """Return whether `refit_projection` can solve a projection.

    It needs a plain matrix or a plain up factor.
    """
    if not isinstance(projection, LowRank):
        return isinstance(projection, Linear)
    up = projection.up.matrix if isinstance(projection.up, Quantized) else projection.up
    return isinstance(up, Tensor)


def refit_projection(projection: Projection, fit: Regression) -> Projection:
    """Return a projection refit on the sums; of a factored one only the up factor.

    The down factor determines the input of the up factor. Quantized weights are quantized again,
    and a sparse term is unchanged. An up factor in a stored form, for example with an identity
    block that is left out, cannot be refit and is unchanged.
    """
    if not isinstance(projection, LowRank):
        return fit.solve(projection)
    if not can_refit(projection):
        return projection
    stored = projection.up if isinstance(projection.up, Quantized) else None
    if projection.sparse is not None:
        sparse = dense(projection.sparse).double()
        fit = replace(fit, y=fit.y - sparse @ fit.x, yx=fit.yx - sparse @ fit.seconds())
    down = dense(projection.down).double()
    xx = down @ fit.seconds() @ down.mT
    inner = replace(fit, x=down @ fit.x, xx=xx, yx=fit.yx @ down.mT)
    up = inner.solve(Linear(dense(projection.up), projection.bias))
    weight = up.weight if stored is None else quantize(up.weight, stored.bits, stored.chunk)
    return replace(projection, up=weight, bias=up.bias)


MAX_TOKEN_WEIGHT = 4.0  # relative to a token of median size: small streams are noise
GAIN_DAMPING = 1e-4  # share of the mean squared gain, added to the square of each gain


class ResidualTargets:
    """The regression of the targets of a component's last projection.

    Tokens are weighted relative to the median token of the first batch.
    """

    def __init__(self, network: PreTrainedModel, layer: nn.Module, component: str) -> None:
        """Start an empty regression for the "attention" or "mlp" of a compressed layer."""
        self.sums, self._multiplier = Regression(), residual_multiplier(network)
        self._norm = norm_after(network, layer, component)
        self._median: Tensor | None = None

    @property
    def is_normed(self) -> bool:
        """Whether the output is normalized before it is added."""
        return self._norm is not None

    def add(self, x: Tensor, after: Tensor, before: Tensor, dense_out: Tensor | None) -> None:
        """Add a batch.

        x: inputs [b, t, in]. after: the dense stream after the component, [b, t, d]. before: the
        compressed stream before it, [b, t, d]. dense_out: if the output is normalized, the outputs
        of the dense projection, [b, t, d].
        """
        target, squares = (after - before) / self._multiplier, mean_squares(after)
        if self._norm is not None and dense_out is not None:
            target = pre_norm_target(self._norm, target, dense_out)
            squares = squares * mean_squares(dense_out)
        if self._median is None:
            self._median = squares.median()
        weights = token_weights(squares, self._median)
        self.sums.add(x, target, weights)


def pre_norm_target(norm: nn.Module, target: Tensor, dense_out: Tensor) -> Tensor:
    """Return an input of an RMS norm near `dense_out` for the output `target`, [b, t, d] each.

    See the module's docstring. In float32 at least.
    """
    dense_out = at_least_float32(dense_out)
    gain = norm(torch.ones_like(dense_out[..., :1, :]))
    step = gain / (gain.square() + GAIN_DAMPING * gain.square().mean()) * (target - norm(dense_out))
    result: Tensor = dense_out + mean_squares(dense_out).sqrt().unsqueeze(-1) * step
    return result


def token_weights(squares: Tensor, median: Tensor) -> Tensor:
    """Return the weight of each token [b, t].

    squares [b, t]: mean squares of the residual stream after a component. median: of these.
    """
    tiny = torch.finfo(squares.dtype).tiny  # for a stream of zeros
    return (median.clamp_min(tiny) / squares.clamp_min(tiny)).clamp_max(MAX_TOKEN_WEIGHT)


def mean_squares(stream: Tensor) -> Tensor:
    """Return the mean square of each token [b, t] of a stream [b, t, d], in float32 at least."""
    return at_least_float32(stream).square().mean(-1)
