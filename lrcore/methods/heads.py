"""Attention by selection of whole heads, which the methods that remove structures share.

What is kept or removed is a group: a key and a value head with the query heads that read them.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layer import (
    Attention,
    Layer,
    Linear,
    Projection,
    heads,
    merge_output_heads,
    output_heads,
)
from ..spectra import Cost
from .factors import removed_mean


@dataclass(frozen=True, eq=False)
class GroupOrder:
    """Attention by selection: the first r groups of order [n_kv], with their weights as they are.

    mean [n_q * v_size]: of the heads' outputs; given where what the removed heads contribute on
    average moves into the bias of the output projection. scores [n_kv]: see `Spectrum`.
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
        a, groups = layer.attention, self.order[:rank].sort().values
        small = of_groups(a, groups)
        if self.mean is not None:
            size = torch.arange(a.v_size, device=groups.device)
            kept = (queries_of(a, groups).unsqueeze(1) * a.v_size + size).flatten()
            o = Linear(small.o.weight, removed_mean(a.o, kept, self.mean))
            small = replace(small, o=o)
        return replace(layer, attention=small)


def queries_of(a: Attention, groups: Tensor) -> Tensor:
    """The query heads of some groups [r], in order: [r * group]."""
    own = torch.arange(a.group, device=groups.device)
    return (groups.unsqueeze(1) * a.group + own).flatten()


def groups_left(before: Attention, after: Attention) -> Tensor:
    """The places in `before` of the groups that `after` still has, [n_kv], ascending."""
    groups = torch.arange(before.n_kv, device=before.k.weight.device)
    if after.kept_heads is None:
        return groups
    first = (
        groups * before.group if before.kept_heads is None else before.kept_heads[:: before.group]
    )
    return groups[torch.isin(first, after.kept_heads.to(first))]


def of_groups(a: Attention, groups: Tensor) -> Attention:
    """The attention with some groups [r] alone, ascending; the bias of the output projection stays.

    Its output is that of `a` with zeros in place of the outputs of all other heads.
    """
    queries = queries_of(a, groups)
    before = torch.arange(a.n_q, device=groups.device)
    if a.kept_heads is not None:
        before = a.kept_heads.long().to(groups.device)
    out = merge_output_heads(output_heads(a.o.weight, a.n_q)[queries])
    return replace(
        a,
        q=_rows(a.q, a.n_q, queries),
        k=_rows(a.k, a.n_kv, groups),
        v=_rows(a.v, a.n_kv, groups),
        o=Linear(out, a.o.bias),
        n_q=len(queries),
        n_kv=len(groups),
        rotary_pairs=None if a.rotary_pairs is None else a.rotary_pairs[groups],
        kept_heads=before[queries],
        latent="",
    )


def _rows(linear: Projection, count: int, kept: Tensor) -> Linear:
    """The projection with the states of some of its `count` heads alone. kept [r]."""
    bias = None if linear.bias is None else heads(linear.bias, count)[kept].flatten()
    return Linear(heads(linear.weight, count)[kept].flatten(0, 1), bias)
