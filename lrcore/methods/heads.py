"""Attention by selection of whole heads, which the methods that remove structures share.

What is kept or removed is a group: a key and a value head with the query heads that read them.
"""

from dataclasses import replace

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
from .factors import StructureOrder, removed_mean


class GroupOrder(StructureOrder):
    """Attention by selection of groups, with their columns of the output projection."""

    def _of(self, layer: Layer, kept: Tensor) -> Layer:
        a = layer.attention
        small = of_groups(a, kept)
        if self.mean is not None:
            size = torch.arange(a.v_size, device=kept.device)
            inputs = (queries_of(a, kept).unsqueeze(1) * a.v_size + size).flatten()
            small = replace(small, o=Linear(small.o.weight, removed_mean(a.o, inputs, self.mean)))
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
