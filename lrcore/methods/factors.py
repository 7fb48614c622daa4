"""What `factor` returns: one decomposition per slot that serves every rank.

Each class holds the tensors of one slot in order of importance, the loss curve over rank (`values`,
see `Spectrum`), and the cost per rank (`cost`). `truncate(layer, rank)` takes the first `rank` of
them and decomposes nothing; at full rank the slot stays dense. Here are the factors of the MLP and
of a single matrix; those of attention are in lrcore/methods/attention_factors.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from ..layer import MLP, Layer, Linear, LowRank, Projection
from ..linalg import leading_refit
from ..lower import Lower
from ..spectra import Cost, Form, Spectrum


class Factor(Protocol):
    """A decomposed slot: its loss curve, its cost, and the layer at any rank.

    values [k]: the loss curve, see `Spectrum`. heads [heads, k]: the curve of every head, where the
    slot has heads.
    """

    @property
    def values(self) -> Tensor: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def heads(self) -> Tensor | None: ...

    def truncate(self, layer: Layer, rank: int) -> Layer:
        """The layer with this slot at a rank, `layer` itself at full rank."""
        ...


LayerFactors = dict[str, Factor]  # of one layer, by component or matrix name


def spectrum(index: int, name: str, factor: Factor, form: Form | None = None) -> Spectrum:
    """The loss curve of a factor as a Spectrum of slot (index, name), on the CPU, where ranks are
    chosen; form: see there.
    """
    more: tuple[Tensor | None, ...] = (factor.heads, getattr(factor, "scores", None))
    heads, scores = (None if one is None else one.cpu() for one in more)
    return Spectrum(
        (index, name),
        factor.values.cpu(),
        factor.cost,
        heads,
        unit=getattr(factor, "unit", name),
        scores=scores,
        form=form,
    )


def truncate(layer: Layer, layer_factors: LayerFactors, ranks: Mapping[str, int]) -> Layer:
    """The layer with every slot in `ranks` truncated to its rank.

    Slots share no tensors, so their order is free.
    """
    for name, rank in ranks.items():
        layer = layer_factors[name].truncate(layer, rank)
    return layer


def mlp_of(layer: Layer) -> MLP:
    """The MLP of a layer that has slots in it."""
    assert layer.mlp is not None
    return layer.mlp


def pooled(values: Tensor) -> Tensor:
    """Loss curve of heads that share one rank: the root of the sum of squares.

    [heads, k] -> [k].
    """
    return (values**2).sum(0).sqrt()


@dataclass(frozen=True, eq=False)
class StructureOrder(ABC):
    """Selection of whole structures: the first r of order [n] stay, with their weights as they are.

    mean [in]: of the inputs of the projection that reads them; given where what the removed ones
    contribute on average moves into its bias. scores [n]: see `Spectrum`.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor
    mean: Tensor | None = None
    scores: Tensor | None = None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        return layer if rank >= self.cost.full else self._of(layer, self.order[:rank].sort().values)

    @abstractmethod
    def _of(self, layer: Layer, kept: Tensor) -> Layer:
        """The layer with the structures kept [r] alone, ascending."""


class NeuronOrder(StructureOrder):
    """MLP by selection of neurons, with their columns of `down`."""

    def _of(self, layer: Layer, kept: Tensor) -> Layer:
        old = mlp_of(layer).down
        small = narrow_mlp(layer, kept, old.weight[:, kept])
        if self.mean is None:
            return small
        return with_down_bias(small, removed_mean(old, kept, self.mean))


@dataclass(frozen=True, eq=False)
class NystromOrder:
    """MLP by selection and least-squares refit, for every rank from one Cholesky factor.

    With C permuted by order [d_f] and C = L L^T, the refit at rank r is
    `(W L)[:, :r] L[:r, :r]^{-1}`, and the error of the output is `sum_{j >= r} |(W L)[:, j]|^2`.
    cholesky: L [d_f, d_f]; product: W L [d, d_f], both in the permuted order. mean [d_f], in the
    original order: given where C is a covariance; the mean of the removed neurons then moves into
    the bias of `down`. scores [d_f]: see `Spectrum`.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor
    cholesky: Lower
    product: Tensor
    mean: Tensor | None = None
    scores: Tensor | None = None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        kept, old = self.order[:rank], mlp_of(layer).down
        down = leading_refit(self.cholesky, self.product, rank)
        small = narrow_mlp(layer, kept, down.to(old.weight.dtype))
        if self.mean is None:
            return small
        shift = old.weight.double() @ self.mean - down @ self.mean[kept]
        return with_down_bias(small, moved_bias(old, shift))


def moved_bias(linear: Projection, shift: Tensor) -> Tensor:
    """The bias [out] of a projection plus shift [out], what its approximation loses of the mean; a
    projection without a bias gets one.
    """
    return (shift if linear.bias is None else linear.bias.double() + shift).to(linear.weight.dtype)


def removed_mean(linear: Projection, kept: Tensor, mean: Tensor) -> Tensor:
    """The bias [out] of a projection plus what its inputs that are not in kept [r] contribute on
    average. mean [in]: of the inputs.
    """
    gone = mean.clone().index_fill_(0, kept, 0.0)
    return moved_bias(linear, linear.weight.double() @ gone)


def with_down_bias(layer: Layer, bias: Tensor) -> Layer:
    """The layer with another bias [d] in its down projection."""
    mlp = mlp_of(layer)
    return replace(layer, mlp=replace(mlp, down=replace(mlp.down, bias=bias)))


def narrow_mlp(layer: Layer, kept: Tensor, down: Tensor) -> Layer:
    """The layer with the neurons kept [r] alone, and `down` [d, r] as weight of the down
    projection.
    """

    def rows(p: Projection) -> Linear:
        return Linear(p.weight[kept], None if p.bias is None else p.bias[kept])

    m = mlp_of(layer)
    gate = None if m.gate is None else rows(m.gate)
    small = replace(m, up=rows(m.up), gate=gate, down=Linear(down, m.down.bias))
    return replace(layer, mlp=small)


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """One matrix as a product: `W^ = up[:, :r] @ down[:r]`.

    up [out, k], down [k, in]; the bias stays as it is.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    name: str
    up: Tensor
    down: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        old = layer.matrices()[self.name]
        down, up = (t.to(old.weight.dtype) for t in (self.down[:rank], self.up[:, :rank]))
        return layer.with_matrices(**{self.name: LowRank(down, up, old.bias)})

    def without_each_term(self, gradient: Tensor) -> Tensor:
        """What the loss changes by, to first order, without each of the terms alone, [k], float64.

        gradient [out, in]: of the loss, by the matrix.
        """
        return -(self.up.double() * (gradient.double() @ self.down.double().mT)).sum(0)
