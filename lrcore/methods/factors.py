"""What `factor` leaves behind: one decomposition per slot that serves every rank.

Each class holds the tensors of one slot in order of importance, the loss curve over rank (`values`,
see `Spectrum`), and the price per rank (`cost`). `truncate(layer, rank)` takes the first `rank` of
them; it decomposes nothing. At full rank the slot is left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..layer import (
    MLP,
    Attention,
    Layer,
    Linear,
    LowRank,
    Projection,
    heads,
    map_rows,
    merge_output_heads,
    output_heads,
)
from ..spectra import Cost, Spectrum


class Factor(Protocol):
    """The solved slot: its loss curve, its price, and the layer at any rank."""

    @property
    def values(self) -> Tensor: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def heads(self) -> Tensor | None: ...

    def truncate(self, layer: Layer, rank: int) -> Layer: ...


LayerFactors = dict[str, Factor]  # of one layer, by component or matrix name


def spectrum(index: int, name: str, factor: Factor) -> Spectrum:
    """The loss curve of a factor as a Spectrum of slot (index, name)."""
    return Spectrum(
        (index, name), factor.values, factor.cost, factor.heads, unit=getattr(factor, "unit", name)
    )


def truncate(layer: Layer, layer_factors: LayerFactors, ranks: Mapping[str, int]) -> Layer:
    """The layer with every slot in `ranks` cut to its rank.

    Slots do not touch each other's tensors, so their order is free.
    """
    for name, rank in ranks.items():
        layer = layer_factors[name].truncate(layer, rank)
    return layer


def pooled(values: Tensor) -> Tensor:
    """Loss curve of heads that share one rank: root of the summed squares. [heads, k] -> [k]."""
    return (values**2).sum(0).sqrt()


# ---- what a rank costs ----


def _has_bias(projection: Projection) -> int:
    return int(projection.bias is not None)


def qk_cost(a: Attention, step: int = 1) -> Cost:
    """A rank of QK is a column of every query and key head."""
    biases = a.n_q * _has_bias(a.q) + a.n_kv * _has_bias(a.k)
    per_rank = a.n_q * a.q.weight.shape[1] + a.n_kv * a.k.weight.shape[1] + biases
    return Cost(
        a.head_size,
        per_rank,
        per_rank * a.head_size,
        step=step,
        kv_per_rank=a.n_kv,
        kv_dense=a.n_kv * a.head_size,
        idle_per_rank=biases,
        idle_dense=biases * a.head_size,
    )


def ov_cost(a: Attention) -> Cost:
    """A rank of OV is a column of every value head and of every head's slice of the output
    projection.
    """
    d_out, d = a.o.weight.shape[0], a.v.weight.shape[1]
    per_rank, fixed = a.n_kv * (d + _has_bias(a.v)) + a.n_q * d_out, d_out * _has_bias(a.o)
    return Cost(
        a.head_size,
        per_rank,
        per_rank * a.head_size + fixed,
        fixed,
        kv_per_rank=a.n_kv,
        kv_dense=a.n_kv * a.head_size,
        idle_per_rank=a.n_kv * _has_bias(a.v),
        idle_fixed=fixed,
        idle_dense=a.n_kv * _has_bias(a.v) * a.head_size + fixed,
    )


def summed_ov_cost(a: Attention) -> Cost:
    """A rank of the overall OV is a row of values for *every query head* and one column of the
    output projection they share.

    Each query head caches its own values, so the cache grows with the rank: n_q * rank against n_kv
    * d_h numbers per token.
    """
    d_out, d = a.o.weight.shape[0], a.v.weight.shape[1]
    per_rank, fixed = a.n_q * (d + _has_bias(a.v)) + d_out, d_out * _has_bias(a.o)
    dense = a.v.parameters + a.o.parameters
    return Cost(
        d_out,
        per_rank,
        dense,
        fixed,
        kv_per_rank=a.n_q,
        kv_dense=a.n_kv * a.head_size,
        idle_per_rank=a.n_q * _has_bias(a.v),
        idle_fixed=fixed,
        idle_dense=a.n_kv * a.head_size * _has_bias(a.v) + fixed,
    )


def mlp_cost(m: MLP) -> Cost:
    """A rank of the MLP is one hidden neuron."""
    d_out, d_f = m.down.weight.shape
    rows = [p for p in (m.up, m.gate) if p is not None]
    per_rank, fixed = (
        d_out + sum(p.weight.shape[1] + _has_bias(p) for p in rows),
        d_out * _has_bias(m.down),
    )
    biases = sum(map(_has_bias, rows))
    return Cost(
        d_f,
        per_rank,
        per_rank * d_f + fixed,
        fixed,
        idle_per_rank=biases,
        idle_fixed=fixed,
        idle_dense=biases * d_f + fixed,
    )


def matrix_cost(layer: Layer, name: str) -> Cost:
    """A rank of a factored matrix is one row of `down` and one column of `up`; the KV cache
    stays as it is.
    """
    projection = layer.matrices()[name]
    d_out, d_in = projection.weight.shape
    fixed = d_out * _has_bias(projection)
    kv = layer.attention.n_kv * layer.attention.head_size if name in ("k", "v") else 0
    return Cost(
        min(d_out, d_in),
        d_out + d_in,
        d_out * d_in + fixed,
        fixed,
        kv_fixed=kv,
        kv_dense=kv,
        idle_fixed=fixed,
        idle_dense=fixed,
    )


# ---- the kinds of factor ----


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """QK without rotary: `q^ = T_q q`, `k^ = T_k k` with the first r rows of q_maps [n_q, d_h,
    d_h] and k_maps [n_kv, d_h, d_h].
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    q_maps: Tensor
    k_maps: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        q, k = map_rows(a.q, self.q_maps[:, :rank]), map_rows(a.k, self.k_maps[:, :rank])
        return replace(layer, attention=replace(a, q=q, k=k, qk_size=rank))


@dataclass(frozen=True, eq=False)
class ColumnOrder:
    """QK by selection.

    order [n_kv, d_h / step]: columns (step 1) or rotary pairs (step 2) of each kv head, most
    important first.

    Pair j stands for the columns (j, j + d_h / 2) of the rotate-half layout; the kept ones are
    sorted, since their order is free.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a, step = layer.attention, self.cost.step
        kept = self.order[:, : rank // step].sort(dim=-1).values
        columns = (
            kept if step == 1 else torch.cat((kept, kept + a.head_size // 2), dim=-1)
        )  # [n_kv, rank]
        q, k = select_rows(a.q, columns.repeat_interleave(a.group, 0)), select_rows(a.k, columns)
        return replace(
            layer,
            attention=replace(a, q=q, k=k, qk_size=rank, rotary_pairs=kept if step == 2 else None),
        )


def select_rows(linear: Linear, columns: Tensor) -> Linear:
    """Keep, in each head, the named entries of its state. columns [heads, r]."""
    count = columns.shape[0]
    index = (
        columns
        + torch.arange(count, device=columns.device).unsqueeze(1)
        * (linear.weight.shape[0] // count)
    ).flatten()
    return Linear(linear.weight[index], None if linear.bias is None else linear.bias[index])


@dataclass(frozen=True, eq=False)
class ValueMaps:
    """OV: `v^ = T v` with the first r rows of v_maps [n_kv, d_h, d_h], and the first r columns
    of each head's out [n_q, d, d_h].
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    v_maps: Tensor
    out: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        o = Linear(merge_output_heads(self.out[..., :rank]).to(a.o.weight.dtype), a.o.bias)
        return replace(
            layer, attention=replace(a, v=map_rows(a.v, self.v_maps[:, :rank]), o=o, v_size=rank)
        )


@dataclass(frozen=True, eq=False)
class SummedValues:
    """OV over all heads at once: the attention output on its first r principal directions.

    basis [d, d].

    Every query head gets the values `V_r^T W_o,i W_v x`, the sum of the heads' outputs goes through
    the shared `V_r`.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    basis: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a, basis = layer.attention, self.basis[:, :rank]
        maps = basis.mT @ output_heads(a.o.weight.double(), a.n_q)  # [n_q, r, d_h]
        shared = (
            heads(a.v.weight, a.n_kv).repeat_interleave(a.group, 0).flatten(0, 1)
        )  # [n_q * d_h, d]
        bias = (
            None
            if a.v.bias is None
            else heads(a.v.bias, a.n_kv).repeat_interleave(a.group, 0).flatten()
        )
        v = map_rows(Linear(shared, bias), maps, a.v.weight.dtype)
        return replace(
            layer,
            attention=replace(
                a, v=v, o=Linear(basis.to(a.o.weight.dtype), a.o.bias), v_size=rank, summed=True
            ),
        )


@dataclass(frozen=True, eq=False)
class NeuronOrder:
    """MLP by selection: keep the first r neurons of order [d_f]; `down` keeps its columns as
    they are.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        kept = self.order[:rank].sort().values
        return narrow_mlp(layer, kept, layer.mlp.down.weight[:, kept])


@dataclass(frozen=True, eq=False)
class NystromOrder:
    """MLP by selection and least-squares refit, for every rank from one Cholesky factor.

    With C permuted by order and C = L L^T, the refit at rank r is `(W L)[:, :r] L[:r, :r]^{-1}` and
    the output error left is `sum_{j >= r} |(W L)[:, j]|^2`. cholesky L [d_f, d_f]; product W L [d,
    d_f], both in the permuted order.
    mean [d_f], in the original order, where C is a covariance: what the neurons that go had on
    average moves into the bias of `down`.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor
    cholesky: Tensor
    product: Tensor
    mean: Tensor | None = None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        kept, old = self.order[:rank], layer.mlp.down
        down = torch.linalg.solve_triangular(
            self.cholesky[:rank, :rank], self.product[:, :rank], upper=False, left=False
        )
        small = narrow_mlp(layer, kept, down.to(old.weight.dtype))
        if self.mean is None:
            return small
        bias = moved_bias(old, old.weight.double() @ self.mean - down @ self.mean[kept])
        return replace(small, mlp=replace(small.mlp, down=replace(small.mlp.down, bias=bias)))


def moved_bias(linear: Linear, shift: Tensor) -> Tensor:
    """The bias of a projection plus what its approximation loses of the mean; a projection
    without one gets one. [out]
    """
    return (shift if linear.bias is None else linear.bias.double() + shift).to(linear.weight.dtype)


def narrow_mlp(layer: Layer, kept: Tensor, down: Tensor) -> Layer:
    """Keep the named neurons [r] and give the down projection its new weight [d, r]."""

    def rows(p: Linear | None) -> Linear | None:
        return (
            None if p is None else Linear(p.weight[kept], None if p.bias is None else p.bias[kept])
        )

    m = layer.mlp
    return replace(
        layer, mlp=replace(m, up=rows(m.up), gate=rows(m.gate), down=Linear(down, m.down.bias))
    )


@dataclass(frozen=True, eq=False)
class FactoredMatrix:
    """One matrix as a product: `W^ = up[:, :r] @ down[:r]`.

    up [out, k], down [k, in], bias as it was.
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
        dtype = old.weight.dtype
        return layer.with_matrices(
            **{
                self.name: LowRank(
                    self.down[:rank].to(dtype), self.up[:, :rank].to(dtype), old.bias
                )
            }
        )
