"""The linear regression of a projection's outputs on its inputs, from sums over tokens."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..forms import Quantised, dense, quantise
from ..layer import Linear, LowRank, Projection, Stored
from ..linalg import cholesky
from ..precise import exact, exact_sum
from ..statistics import SecondSum, at_least_float32, centred

# Share of the diagonal that pulls towards the closed form: without it a small calibration set is
# overfitted.
RIDGE = 0.3


@dataclass
class Regression:
    """Weighted sums over tokens of a regression of y [n, out] on x [n, in], float64.

    xx: a SecondSum while rows are added, then [in, in].
    """

    count: float = 0.0
    x: Any = 0.0  # a float until the first batch, then a tensor
    y: Any = 0.0
    yx: Any = 0.0
    xx: Any = field(default_factory=SecondSum)

    def add(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch x [..., in], y [..., out] of tokens that count by weights [...] >= 0, each as
        one without them: products in float32 at least, sums in float64.
        """
        x, y = at_least_float32(x.flatten(0, -2)), at_least_float32(y.flatten(0, -2))
        own = None if weights is None else weights.flatten().to(x.dtype).unsqueeze(1)
        self.count += len(x) if own is None else float(exact_sum(own))
        (x, total_x, mean_x), (y, total_y, mean_y) = centred(x, own), centred(y, own)
        self.x, self.y = self.x + total_x, self.y + total_y
        self.xx.add(x, mean_x)
        self.yx = self.yx + exact(y.mT @ x).addr_(mean_y, mean_x)

    def through(self, projection: Projection) -> "Regression":
        """The same of what a projection gives for y; nothing is added after it."""
        yx = projection.weight.double() @ self.yx
        if projection.bias is not None:
            yx = yx + torch.outer(projection.bias.double(), self.x)
        return replace(self, xx=self.seconds(), y=self.sum_through(projection), yx=yx)

    def sum_through(self, projection: Projection) -> Tensor:
        """The sum of what a projection gives for y, [out]."""
        total: Tensor = projection.weight.double() @ self.y
        return total if projection.bias is None else total + self.count * projection.bias.double()

    def seconds(self) -> Tensor:
        """The sum of x x^T, [in, in]; nothing is added after it."""
        if isinstance(self.xx, SecondSum):
            self.xx = self.xx.total()
        whole: Tensor = self.xx
        return whole

    def solve(self, start: Linear | Stored, ridge: float = RIDGE) -> Linear:
        """The ridge solution towards `start`, with a bias where start has one.

        ridge >= 0: share of the diagonal of E[x x^T].
        """
        weight = self.solution(start.weight, ridge, start.bias is not None).weight
        dtype = start.weight.dtype
        return Linear(weight.to(dtype), self.bias(weight, start, dtype))

    def bias(self, weight: Tensor, start: Projection, dtype: torch.dtype) -> Tensor | None:
        """The best bias [out] beside a weight [out, in]; None where `start` has none."""
        if start.bias is None:
            return None
        bias: Tensor = (self.y - weight @ self.x) / self.count
        return bias.to(dtype)

    def solution(self, start: Tensor | None, ridge: float, centred: bool) -> "Solution":
        """The ridge solution towards a weight [out, in], None for the identity. centred: the means
        are taken away, as where there is a bias.
        """
        xx, yx = self.seconds() / self.count, self.yx / self.count
        if centred:
            mean_x, mean_y = self.x / self.count, self.y / self.count
            xx.addr_(mean_x, mean_x, alpha=-1)
            yx.addr_(mean_y, mean_x, alpha=-1)
        if start is None:
            weight, missing = torch.eye(len(xx), dtype=xx.dtype, device=xx.device), yx - xx
        else:
            weight = start.double()
            missing = yx - weight @ xx
        # of inputs of one size each: what damps the factor must not drown small ones beside massive
        # activations
        squares = xx.diagonal().clone()
        scale = torch.where(squares > 0, squares, 1).rsqrt()
        xx.mul_(scale).mul_(scale.unsqueeze(1)).diagonal().mul_(1 + ridge)
        # the step from W_0, zero where nothing is lost
        step = torch.cholesky_solve((missing * scale).mT, cholesky(xx)).mT
        return Solution(weight + step * scale, xx, scale)


@dataclass(frozen=True, eq=False)
class Solution:
    """A ridge regression solved: its weight [out, in], and what an error of it costs, the second
    moment [in, in] of the inputs times `scale` [in], with the ridge on its diagonal. float64.
    """

    weight: Tensor
    second: Tensor
    scale: Tensor


class Readers:
    """Projections that read one input x, refit on what each gives for x', the same input of the
    dense model.

    The ridge solution towards W of `W x'` on x is `W Z`, Z that towards the identity of x' on x:
    solved once, however many read x and however many outputs they have.
    """

    def __init__(self, fit: Regression) -> None:
        """fit: of x' on x, [in] both; nothing is added after it."""
        self.fit = fit
        self._solutions: dict[bool, Tensor] = {}  # Z [in, in], by whether means go

    def refit(self, own: Linear) -> Linear:
        """What `solved` gives for `fit.through(own)`."""
        centred = own.bias is not None
        if centred not in self._solutions:
            self._solutions[centred] = self.fit.solution(None, RIDGE, centred).weight
        weight, dtype = own.weight.double() @ self._solutions[centred], own.weight.dtype
        given = replace(self.fit, y=self.fit.sum_through(own))
        return Linear(weight.to(dtype), given.bias(weight, own, dtype))


def is_free(projection: Projection) -> bool:
    """Whether `solved` can solve a projection: as a plain matrix, or by a plain up factor."""
    if not isinstance(projection, LowRank):
        return isinstance(projection, Linear)
    up = projection.up.matrix if isinstance(projection.up, Quantised) else projection.up
    return isinstance(up, Tensor)


def solved(projection: Projection, fit: Regression) -> Projection:
    """The projection refit on the sums; of a factored one only the up factor, whose input the down
    factor fixes.

    Quantised weights are quantised again, and a sparse term stays. An up factor that is stored in a
    form, as where an identity block is left out, cannot be refit freely and stays as well.
    """
    if not isinstance(projection, LowRank):
        return fit.solve(projection)
    if not is_free(projection):
        return projection
    stored = projection.up if isinstance(projection.up, Quantised) else None
    if projection.sparse is not None:
        sparse = dense(projection.sparse).double()
        fit = replace(fit, y=fit.y - sparse @ fit.x, yx=fit.yx - sparse @ fit.seconds())
    down = dense(projection.down).double()
    xx = down @ fit.seconds() @ down.mT
    inner = replace(fit, x=down @ fit.x, xx=xx, yx=fit.yx @ down.mT)
    up = inner.solve(Linear(dense(projection.up), projection.bias))
    weight = up.weight if stored is None else quantise(up.weight, stored.bits, stored.chunk)
    return replace(projection, up=weight, bias=up.bias)
