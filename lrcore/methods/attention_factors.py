"""Factors of attention: of queries and keys, and of values and the output projection.

lrcore/methods/factors.py describes the properties that all factors share.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..layers.layer import (
    Layer,
    Linear,
    Projection,
    heads,
    map_rows,
    merge_output_heads,
    output_heads,
)
from ..layers.spectra import Cost


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """QK without rotary: `q^ = T_q q`, `k^ = T_k k`.

    T_q and T_k are the first r rows of q_maps [n_q, d_h, d_h] and k_maps [n_kv, d_h, d_h].
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
        latent = a.latent.replace("k", "")
        return replace(layer, attention=replace(a, q=q, k=k, qk_size=rank, latent=latent))


@dataclass(frozen=True, eq=False)
class ColumnOrder:
    """QK by selection of columns (step 1) or of complete rotary pairs (step 2).

    order [n_kv, d_h / step]: the columns or pairs of each kv head, most important first. Pair j
    stands for the columns (j, j + d_h / 2) of the rotate-half layout, d_h the size of queries and
    keys. The selected ones are sorted, since their order does not matter.
    maps: of the queries and keys of a kv head, [n_kv, d_h, d_h] each, if the columns are selected
    from `T q` and `T k` (see `attention_scores.unrotated_directions`).
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    order: Tensor
    maps: tuple[Tensor, Tensor] | None = None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a, step = layer.attention, self.cost.step
        selected = self.order[:, : rank // step].sort(dim=-1).values
        columns = selected
        if step == 2:  # [n_kv, rank / 2] -> [n_kv, rank]
            columns = torch.cat((selected, selected + a.qk_size // 2), dim=-1)
        q_maps, k_maps = self.maps or (None, None)
        q = select_rows(a.q, columns.repeat_interleave(a.group, 0), q_maps)
        k = select_rows(a.k, columns, k_maps)
        pairs = selected if step == 2 else None
        if pairs is not None and a.rotary_pairs is not None:  # pairs were removed before
            pairs = a.rotary_pairs.long().gather(1, selected)
        sizes: dict[str, Any] = {
            "qk_size": rank,
            "rotary_pairs": pairs,
            "latent": a.latent.replace("k", ""),
        }
        return replace(layer, attention=replace(a, q=q, k=k, **sizes))


def select_rows(linear: Projection, columns: Tensor, maps: Tensor | None = None) -> Linear:
    """Return the projection with only the entries `columns` [heads, r] of each head state.

    maps [n_kv, size, size]: if not None, the entries are selected from the mapped states; each map
    applies to all heads that read its kv head.
    """
    count = columns.shape[0]
    if maps is not None:
        by_head = maps.repeat_interleave(count // len(maps), 0)  # [heads, size, size]
        head = torch.arange(count, device=columns.device).unsqueeze(1)
        return map_rows(linear, by_head[head, columns])  # maps [heads, r, size]
    size = linear.weight.shape[0] // count
    first = torch.arange(count, device=columns.device).unsqueeze(1) * size  # [heads, 1]
    index = (columns + first).flatten()
    return Linear(linear.weight[index], None if linear.bias is None else linear.bias[index])


@dataclass(frozen=True, eq=False)
class ValueMaps:
    """OV: `v^ = T v`, T the first r rows of v_maps [n_kv, d_h, d_h].

    The output projection of a query head is the first r columns of its part of out [n_q, d, d_h].
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
        v, latent = map_rows(a.v, self.v_maps[:, :rank]), a.latent.replace("v", "")
        return replace(layer, attention=replace(a, v=v, o=o, v_size=rank, latent=latent))


@dataclass(frozen=True, eq=False)
class SummedValues:
    """OV over all heads jointly: the output of the attention, projected onto its first r principal
    directions, the columns `V_r` of basis [d, d].

    Every query head gets the values `V_r^T W_o,i W_v x`; the sum of the outputs of the heads is
    multiplied by the shared `V_r`.
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

        def per_query_head(t: Tensor) -> Tensor:
            return heads(t, a.n_kv).repeat_interleave(a.group, 0).flatten(0, 1)

        # [n_q * d_h, d] and [n_q * d_h]
        values = Linear(
            per_query_head(a.v.weight), None if a.v.bias is None else per_query_head(a.v.bias)
        )
        v = map_rows(values, maps, a.v.weight.dtype)
        o = Linear(basis.to(a.o.weight.dtype), a.o.bias)
        sizes: dict[str, Any] = {
            "v_size": rank,
            "summed": True,
            "latent": a.latent.replace("v", ""),
        }
        return replace(layer, attention=replace(a, v=v, o=o, **sizes))
