"""Rank-free factors: a decomposition per slot that serves every rank.

Each class holds the tensors of a slot in order of importance, the loss curve over rank (`values`,
see `Spectrum`) and the cost per rank (`cost`). `truncate(layer, rank)` takes the first `rank`
directions without a further decomposition. At full rank the slot stays dense. This module has the
factors of the MLP and of single matrices; lrcore/methods/attention_factors.py has those of
attention.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from ..layers.layer import MLP, Layer, Linear, LowRank, Projection
from ..layers.linalg import Lower, leading_refit
from ..layers.spectra import Cost, Form, Spectrum
from ..layers.statistics import TAPS, Moments


class Factor(Protocol):
    """A decomposed slot: the loss curve, the cost, and the layer at any rank.

    values [k]: the loss curve, see `Spectrum`. heads [heads, k]: the curve of each head, if the
    slot has heads.
    """

    @property
    def values(self) -> Tensor: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def heads(self) -> Tensor | None: ...

    def truncate(self, layer: Layer, rank: int) -> Layer:
        """Return the layer with this slot at a rank; at full rank the layer itself."""
        ...


LayerFactors = dict[str, Factor]  # of one layer, by component or matrix name


def spectrum(index: int, name: str, factor: Factor, form: Form | None = None) -> Spectrum:
    """Return the loss curve of a factor as the Spectrum of slot (index, name).

    The tensors are on the CPU, where ranks are chosen. form: see `Spectrum`.
    """
    optional: tuple[Tensor | None, ...] = (factor.heads, getattr(factor, "scores", None))
    heads, scores = (None if tensor is None else tensor.cpu() for tensor in optional)
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
    """Return the layer with all slots in `ranks` truncated to their ranks.

    Slots share no tensors, so the order does not matter.
    """
    for name, rank in ranks.items():
        layer = layer_factors[name].truncate(layer, rank)
    return layer


def mlp_of(layer: Layer) -> MLP:
    """Return the MLP of a layer that has slots in it."""
    assert layer.mlp is not None
    return layer.mlp


def input_metric(layer: Layer, name: str, moments: Moments) -> tuple[Tensor, Tensor | None]:
    """Return the covariance [in, in] and the mean [in] of the input of a projection.

    The mean that an approximation loses moves into the bias. If there can be none, return the
    second moment and None.
    """
    tap = TAPS[name]
    if layer.can_have_bias(name):
        return moments.centered(tap), moments.mean(tap)
    return moments.second(tap), None


def pooled(values: Tensor) -> Tensor:
    """Return the loss curve of heads with a common rank, the root of the sum of squares: [heads, k]
    -> [k].
    """
    return (values**2).sum(0).sqrt()


@dataclass(frozen=True, eq=False)
class StructureOrder(ABC):
    """Selection of complete structures: the first r of order [n] are retained with unchanged
    weights.

    mean [in]: the mean input of the projection that reads the structures, if the mean contribution
    of the removed structures moves into its bias; else None. scores [n]: see `Spectrum`.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor
    mean: Tensor | None = None
    scores: Tensor | None = None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        return self._select(layer, self.order[:rank].sort().values)

    @abstractmethod
    def _select(self, layer: Layer, retained: Tensor) -> Layer:
        """Return the layer with only the structures `retained` [r], ascending."""


class NeuronOrder(StructureOrder):
    """MLP by selection of neurons, with their columns of `down`."""

    def _select(self, layer: Layer, retained: Tensor) -> Layer:
        old = mlp_of(layer).down
        small = narrow_mlp(layer, retained, old.weight[:, retained])
        if self.mean is None:
            return small
        return with_down_bias(small, bias_with_removed_mean(old, retained, self.mean))


@dataclass(frozen=True, eq=False)
class NystromOrder:
    """MLP by selection and least-squares refit, for every rank from a single Cholesky factor.

    With C permuted by order [d_f] and C = L L^T, the refit at rank r is
    `(W L)[:, :r] L[:r, :r]^{-1}`, and the error of the output is `sum_{j >= r} |(W L)[:, j]|^2`.
    cholesky: L [d_f, d_f]; product: W L [d, d_f], both in the permuted order. mean [d_f], in the
    original order: set if C is a covariance; the mean of the removed neurons then moves into the
    bias of `down`. scores [d_f]: see `Spectrum`.
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
        retained, old = self.order[:rank], mlp_of(layer).down
        down = leading_refit(self.cholesky, self.product, rank)
        small = narrow_mlp(layer, retained, down.to(old.weight.dtype))
        if self.mean is None:
            return small
        shift = old.weight.double() @ self.mean - down @ self.mean[retained]
        return with_down_bias(small, moved_bias(old, shift))


def moved_bias(linear: Projection, shift: Tensor) -> Tensor:
    """Return the bias [out] of a projection plus shift [out], the mean output that its
    approximation loses.

    A projection without a bias gets one.
    """
    return (shift if linear.bias is None else linear.bias.double() + shift).to(linear.weight.dtype)


def bias_with_removed_mean(linear: Projection, retained: Tensor, mean: Tensor) -> Tensor:
    """Return the bias [out] of a projection plus the mean contribution of the inputs outside
    `retained` [r].

    mean [in]: the mean input.
    """
    removed = mean.clone().index_fill_(0, retained, 0.0)
    return moved_bias(linear, linear.weight.double() @ removed)


def with_down_bias(layer: Layer, bias: Tensor) -> Layer:
    """Return the layer with `bias` [d] in its down projection."""
    mlp = mlp_of(layer)
    return replace(layer, mlp=replace(mlp, down=replace(mlp.down, bias=bias)))


def narrow_mlp(layer: Layer, retained: Tensor, down: Tensor) -> Layer:
    """Return the layer with only the neurons `retained` [r] and `down` [d, r] as the weight of the
    down projection.
    """

    def rows(p: Projection) -> Linear:
        return Linear(p.weight[retained], None if p.bias is None else p.bias[retained])

    m = mlp_of(layer)
    gate = None if m.gate is None else rows(m.gate)
    small = replace(m, up=rows(m.up), gate=gate, down=Linear(down, m.down.bias))
    return replace(layer, mlp=small)


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """A matrix as a product: `W^ = up[:, :r] @ down[:r]`.

    up [out, k], down [k, in]; the bias is unchanged.
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

    def first_order_changes(self, gradient: Tensor) -> Tensor:
        """Return the first-order change of the loss without each single term `u_i d_i`, [k],
        float64.

        gradient [out, in]: of the loss with respect to the matrix.
        """
        return -(self.up.double() * (gradient.double() @ self.down.double().mT)).sum(0)
