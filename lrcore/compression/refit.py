"""Sequential residual-corrected refit: each layer compensates for the losses of the layers before
it. Ours; in no paper.

With the compressed layers before it in place, the output projection and then the down projection of
a layer are solved again, so that the residual stream after them comes as near as possible to that
of the dense model. With a^ the input of the projection in the compressed model and h the residual
stream,

    min over W, b of E |h_dense_after - (h_compressed_before + W a^ + b)|^2 + RIDGE * |(W - W_0)
    diag(E[a^ a^T])^{1/2}|^2,

W_0 the closed-form weights of the method. Only second and cross moments of a^ and the target are
kept. A projection without a bias gets none here, so the parameters stay as planned.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..forms import IdentityRows, Quantised, dense, quantise
from ..layer import Linear, LowRank, Projection, Stored
from ..linalg import cholesky
from ..models.architectures import decoder_layers, residual_multiplier
from ..models.layers import read_layer, write_layer
from ..models.offload import present
from ..models.stream import LayerStream, Look, along
from ..statistics import SecondSum, at_least_float32

Of = TypeVar("Of")

# Share of the diagonal that pulls towards the closed form: without it a small calibration set is
# overfitted.
RIDGE = 0.3
# Bytes of activations that are kept between the two projections of a layer; what is beyond them is
# computed again.
KEPT = 2**30


@dataclass
class Regression:
    """Sums over tokens of a regression of y [n, out] on x [n, in], float64.

    xx: a SecondSum while rows are added, then [in, in].
    """

    count: int = 0
    x: Any = 0.0  # a float until the first batch, then a tensor
    y: Any = 0.0
    yx: Any = 0.0
    xx: Any = field(default_factory=SecondSum)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add a batch x [..., in], y [..., out]: products in float32 at least, sums in float64."""
        x, y = at_least_float32(x.flatten(0, -2)), at_least_float32(y.flatten(0, -2))
        self.count += len(x)
        self.x = self.x + x.sum(0, dtype=torch.float64)
        self.y = self.y + y.sum(0, dtype=torch.float64)
        self.xx.add(x)
        self.yx = self.yx + (y.mT @ x).double()

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
        xx, yx = self.seconds() / self.count, self.yx / self.count
        if start.bias is not None:
            mean_x, mean_y = self.x / self.count, self.y / self.count
            xx.addr_(mean_x, mean_x, alpha=-1)
            yx.addr_(mean_y, mean_x, alpha=-1)
        weight = start.weight.double()
        missing = yx - weight @ xx
        xx.diagonal().mul_(1 + ridge)
        lower = cholesky(xx)
        # the step from W_0, zero where nothing is lost
        weight = weight + torch.cholesky_solve(missing.mT, lower).mT
        bias = None if start.bias is None else (mean_y - weight @ mean_x).to(start.weight.dtype)
        return Linear(weight.to(start.weight.dtype), bias)


def refit_layer(
    network: PreTrainedModel, index: int, dense: LayerStream, small: LayerStream
) -> None:
    """Refit the output and down projections of layer `index` of the compressed network, then
    advance both streams beyond the layer.

    dense and small are streams that have reached the layer; `network` is the one that small runs.
    """
    with present(decoder_layers(network)[index]), present(decoder_layers(dense.network)[index]):
        _refit(network, index, dense, small)


def _refit(network: PreTrainedModel, index: int, dense: LayerStream, small: LayerStream) -> None:
    """What is before the output projection of the compressed layer is computed once, and so is what
    is between it and the down projection.
    """
    batches, times = range(len(small.hidden)), residual_multiplier(network)
    layer = decoder_layers(network)[index]
    fit, has_down = Regression(), False
    inputs: _Kept[Tensor] = _Kept()
    for number in batches:
        then, o_in = dense.look(index, number), small.look_before(index, number, "o")
        inputs.add(number, o_in, o_in.nbytes)
        goal, before = (along(layer, "attention", one.hidden[number]) for one in (dense, small))
        wanted = goal + times * then.o_out - before
        fit.add(o_in, wanted / times)
        dense.hidden[number], has_down = then.out, then.down_in is not None
    _install(network, index, "o", fit)
    fit = Regression()
    looks: _Kept[Look] = _Kept()
    for number in batches if has_down else ():
        now = small.look(index, number, inputs.get(number))
        assert now.down_in is not None  # the dense layer has one, too
        looks.add(number, now, now.down_in.nbytes + now.o_out.nbytes + now.out.nbytes)
        before = along(layer, "mlp", along(layer, "attention", small.hidden[number]))
        wanted = dense.hidden[number] - before - along(layer, "mlp", times * now.o_out)
        fit.add(now.down_in, wanted / times)
    if has_down:
        _install(network, index, "down", fit)
    for number in batches:
        seen = looks.get(number)
        small.advance(index, number, seen or small.look(index, number, inputs.get(number)))


class _Kept(Generic[Of]):
    """What batches gave, by number, as far as KEPT bytes hold it."""

    def __init__(self) -> None:
        self._own: dict[int, Of] = {}
        self._left = KEPT

    def add(self, number: int, value: Of, size: int) -> None:
        """Keep the value of a batch if its bytes have room."""
        if size <= self._left:
            self._own[number] = value
            self._left -= size

    def get(self, number: int) -> Of | None:
        """The value of a batch where it was kept."""
        return self._own.get(number)


def _install(network: PreTrainedModel, index: int, name: str, fit: Regression) -> None:
    layer = read_layer(network, index)
    write_layer(network, layer.with_matrices(**{name: solved(layer.matrices()[name], fit)}))


def solved(projection: Projection, fit: Regression) -> Projection:
    """The projection refit on the sums; of a factored one only the up factor, whose input the down
    factor fixes.

    Quantised weights are quantised again, and a sparse term stays. An up factor whose identity
    block is left out cannot be refit freely and stays as well.
    """
    if not isinstance(projection, LowRank):
        return fit.solve(projection)
    stored = projection.up if isinstance(projection.up, Quantised) else None
    if isinstance(projection.up if stored is None else stored.matrix, IdentityRows):
        return projection
    if projection.sparse is not None:
        sparse = dense(projection.sparse).double()
        fit = replace(fit, y=fit.y - sparse @ fit.x, yx=fit.yx - sparse @ fit.seconds())
    down = dense(projection.down).double()
    xx = down @ fit.seconds() @ down.mT
    inner = replace(fit, x=down @ fit.x, xx=xx, yx=fit.yx @ down.mT)
    up = inner.solve(Linear(dense(projection.up), projection.bias))
    weight = up.weight if stored is None else quantise(up.weight, stored.bits, stored.chunk)
    return replace(projection, up=weight, bias=up.bias)
