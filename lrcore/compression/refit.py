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

The first token of a window attends to itself alone, and many models give it activations that are
hundreds of times larger than all others, which every later token relies on (Sun et al. 2024,
"Massive Activations in Large Language Models"). The calibration windows hold one such token each:
so few are fitted one by one, and those of another text lose what is large. Tokens of the
calibration windows join the regression once more, each as the first token of a window of its own.
"""

from collections.abc import Sequence
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
# Of how many calibration tokens one joins as a first token; how many of these run at once.
PER_FIRST, FIRST_BATCH = 16, 1024


@dataclass(frozen=True, eq=False)
class Streams:
    """The same windows in the dense and in the compressed model, at the input of one layer."""

    dense: LayerStream
    small: LayerStream


def refit_key() -> tuple[float | int, ...]:
    """What a refit depends on besides its model, recipe and windows: part of the key of whatever
    is kept of a refit model.
    """
    return RIDGE, PER_FIRST


def with_first_tokens(streams: Streams, tokens: Tensor) -> tuple[Streams, ...]:
    """The streams of the calibration windows tokens [n, t], at their beginning, and those of
    windows of one token.
    """
    firsts = first_tokens(tokens)
    dense, small = (
        LayerStream(one.network, firsts, FIRST_BATCH) for one in (streams.dense, streams.small)
    )
    return streams, Streams(dense, small)


def first_tokens(tokens: Tensor) -> Tensor:
    """Windows [m, 1] of tokens drawn from windows tokens [n, t], m = n t / PER_FIRST, at least 1;
    always the same ones.
    """
    every = tokens.flatten()
    drawn = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
    return every[drawn[: max(1, len(every) // PER_FIRST)]].unsqueeze(1)


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


def refit_layer(network: PreTrainedModel, index: int, streams: Sequence[Streams]) -> None:
    """Refit the output and down projections of layer `index` of the compressed network on the
    windows of all streams, then advance them beyond the layer.

    The streams have reached the layer; `network` is the one that the small ones run.
    """
    dense = streams[0].dense.network
    with present(decoder_layers(network)[index]), present(decoder_layers(dense)[index]):
        _refit(network, index, streams)


def _refit(network: PreTrainedModel, index: int, streams: Sequence[Streams]) -> None:
    """What is before the output projection of the compressed layer is computed once, and so is what
    is between it and the down projection.
    """
    batches = [(one, number) for one in streams for number in range(len(one.small.hidden))]
    layer, times = decoder_layers(network)[index], residual_multiplier(network)
    fit, has_down = Regression(), False
    inputs: _Kept[Tensor] = _Kept()
    for both, number in batches:
        dense, small = both.dense, both.small
        then, o_in = dense.look(index, number), small.look_before(index, number, "o")
        inputs.add((both, number), o_in, o_in.nbytes)
        goal, before = (along(layer, "attention", one.hidden[number]) for one in (dense, small))
        wanted = goal + times * then.o_out - before
        fit.add(o_in, wanted / times)
        dense.hidden[number], has_down = then.out, then.down_in is not None
    _install(network, index, "o", fit)
    fit = Regression()
    looks: _Kept[Look] = _Kept()
    for both, number in batches if has_down else ():
        dense, small = both.dense, both.small
        now = small.look(index, number, inputs.get((both, number)))
        assert now.down_in is not None  # the dense layer has one, too
        size = now.down_in.nbytes + now.o_out.nbytes + now.out.nbytes
        looks.add((both, number), now, size)
        before = along(layer, "mlp", along(layer, "attention", small.hidden[number]))
        wanted = dense.hidden[number] - before - along(layer, "mlp", times * now.o_out)
        fit.add(now.down_in, wanted / times)
    if has_down:
        _install(network, index, "down", fit)
    for both, number in batches:
        seen = looks.get((both, number))
        seen = seen or both.small.look(index, number, inputs.get((both, number)))
        both.small.advance(index, number, seen)


class _Kept(Generic[Of]):
    """What batches gave, by stream and number, as far as KEPT bytes hold it."""

    def __init__(self) -> None:
        self._own: dict[tuple[Streams, int], Of] = {}
        self._left = KEPT

    def add(self, batch: tuple[Streams, int], value: Of, size: int) -> None:
        """Keep the value of a batch if its bytes have room."""
        if size <= self._left:
            self._own[batch] = value
            self._left -= size

    def get(self, batch: tuple[Streams, int]) -> Of | None:
        """The value of a batch where it was kept."""
        return self._own.get(batch)


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
