"""Selection of complete heads, shared by the methods that remove structures.

The unit of selection is a group: a key head and a value head with the query heads that read them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..layers.layer import (
    Attention,
    Layer,
    Linear,
    Projection,
    heads,
    merge_output_heads,
    output_heads,
)
from .factors import StructureOrder, bias_with_removed_mean


class GroupOrder(StructureOrder):
    """Attention by selection of groups, with their columns of the output projection."""

    def _select(self, layer: Layer, retained: Tensor) -> Layer:
        a = layer.attention
        small = select_groups(a, retained)
        if self.mean is not None:
            columns = torch.arange(a.v_size, device=retained.device)
            # [r * group, v_size] -> [r * group * v_size]
            inputs = (query_heads_of(a, retained).unsqueeze(1) * a.v_size + columns).flatten()
            small = replace(
                small, o=Linear(small.o.weight, bias_with_removed_mean(a.o, inputs, self.mean))
            )
        return replace(layer, attention=small)


def query_heads_of(a: Attention, groups: Tensor) -> Tensor:
    """Return the query heads of some groups [r], in order: [r * group]."""
    within_group = torch.arange(a.group, device=groups.device)
    return (groups.unsqueeze(1) * a.group + within_group).flatten()


def remaining_groups(before: Attention, after: Attention) -> Tensor:
    """Return the indices in `before` of the groups that `after` still has, [n_kv], ascending."""
    groups = torch.arange(before.n_kv, device=before.k.weight.device)
    if after.kept_heads is None:
        return groups
    first = (
        groups * before.group if before.kept_heads is None else before.kept_heads[:: before.group]
    )
    return groups[torch.isin(first, after.kept_heads.to(first))]


def select_groups(a: Attention, groups: Tensor) -> Attention:
    """Return the attention with only the groups `groups` [r], ascending; the bias of the output
    projection is unchanged.

    The output equals that of `a` with the outputs of all other heads set to zero.
    """
    queries = query_heads_of(a, groups)
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


def _rows(linear: Projection, count: int, selected: Tensor) -> Linear:
    """Return the projection with only the states of the heads `selected` [r].

    count: the number of heads of the projection.
    """
    bias = None if linear.bias is None else heads(linear.bias, count)[selected].flatten()
    return Linear(heads(linear.weight, count)[selected].flatten(0, 1), bias)
