"""Cached latents of keys and values: their costs and factors."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..layers.forms import BlockDiagonal
from ..layers.layer import Layer, LowRank
from ..layers.spectra import Cost
from .costs import as_latent, matrix_cost
from .factors import FactoredMatrix


def latent_cost(layer: Layer, name: str) -> Cost:
    """Return the cost of a latent; a rank is a row of `down`, a column of `up`, and a cached number
    per token.
    """
    cost = matrix_cost(layer, name)
    return cost if cost.latent else as_latent(cost, layer.attention, name)


def grouped_latent_cost(layer: Layer, name: str, groups: int) -> Cost:
    """Return the cost of a latent per group of heads.

    A rank is a row of `down`, a column of the block of `up` of its group, and a cached number per
    token, which every later token multiplies by the block again. All groups have the same rank, so
    ranks are multiples of the number of groups.
    """
    single, (d_out, d_in) = latent_cost(layer, name), layer.matrices()[name].weight.shape
    rows = d_out // groups
    cost = replace(single, full=groups * min(rows, d_in), per_rank=rows + d_in, step=groups)
    cost = replace(cost, per_cached=rows, idle_per_rank=0)
    if name == "k":
        return cost
    # values are expanded for the complete cache, then weighted
    a = layer.attention
    return replace(cost, cached_dense=cost.cached_dense - a.n_q * a.v_size)


def joint_latent_cost(layer: Layer) -> Cost:
    """Return the cost of the latent that keys and values share.

    A rank is a row of `down`, a column of both `up`, and a cached number per token.
    """
    k, v = latent_cost(layer, "k"), latent_cost(layer, "v")
    rows = [layer.attention.k.weight.shape[0], layer.attention.v.weight.shape[0]]
    d_out, d_in = sum(rows), layer.attention.k.weight.shape[1]
    fixed = k.fixed + v.fixed
    return Cost(
        min(d_out, d_in),
        d_out + d_in,
        k.dense + v.dense,
        fixed,
        kv_per_rank=1,
        kv_dense=k.kv_dense + v.kv_dense,
        per_cached=k.per_cached + v.per_cached,
        cached_dense=k.cached_dense + v.cached_dense,
        latent=True,
        idle_per_rank=v.idle_per_rank,
        idle_fixed=fixed,
        idle_dense=k.idle_dense + v.idle_dense,
    )


def with_latents(layer: Layer, name: str) -> Layer:
    """Return the layer whose cache also holds the latents of keys or values ("k", "v")."""
    a = layer.attention
    latent = "".join(state for state in "kv" if state == name or state in a.latent)
    return replace(layer, attention=replace(a, latent=latent))


@dataclass(frozen=True, eq=False)
class LatentMatrix(FactoredMatrix):
    """K or V as a product; the cache holds the latent `down x`.

    Loss curves of keys and values of all layers have the same unit.
    """

    unit: ClassVar[str] = "kv"

    def truncate(self, layer: Layer, rank: int) -> Layer:
        small = super().truncate(layer, rank)
        return small if rank >= self.cost.full else with_latents(small, self.name)


@dataclass(frozen=True, eq=False)
class GroupedLatent:
    """K or V with a latent for each group of heads (Palu).

    up [groups, rows of a group, k]; down [groups, k, d]; the bias is unchanged. A rank is the sum
    over the groups, which have equal ranks: a multiple of their number. heads [groups, k]: the loss
    curve of each group.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    name: str
    up: Tensor
    down: Tensor
    unit: ClassVar[str] = "kv"

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        old, per_group = layer.matrices()[self.name], rank // self.cost.step
        dtype = old.weight.dtype
        up = BlockDiagonal(self.up[..., :per_group].to(dtype).contiguous())
        down = self.down[:, :per_group].flatten(0, 1).to(dtype)  # [groups, r, d] -> [rank, d]
        small = layer.with_matrices(**{self.name: LowRank(down, up, old.bias)})
        return with_latents(small, self.name)


@dataclass(frozen=True, eq=False)
class JointLatent:
    """K and V from a joint latent that the cache holds once.

    up [rows of k and of v, k]; down [k, d]; the biases are unchanged.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    up: Tensor
    down: Tensor
    unit: ClassVar[str] = "kv"

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        dtype, rows = a.k.weight.dtype, len(a.k.weight)
        down, up = self.down[:rank].to(dtype), self.up[:, :rank].to(dtype)
        k, v = LowRank(down, up[:rows], a.k.bias), LowRank(down, up[rows:], a.v.bias)
        return replace(layer, attention=replace(a, k=k, v=v, latent="kv"))
