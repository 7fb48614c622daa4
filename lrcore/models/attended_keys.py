"""How the keys vary that a query attends to: the metric of the keys in the softmax.

Scores enter a softmax. To second order, what a change `d` of a query's scores does to its attention
weights p is the variance of `d` over the keys under p. Scores `q . k` are linear in the keys, so
the covariance of the keys under p measures it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from ..precise import exact
from ..statistics import at_least_float32
from .architectures import architecture_of

NAME = "lrcore_attended_keys"  # of the attention function, in transformers' AttentionInterface
USUAL = "sdpa"  # the one in whose place it can stand: it takes the same masks
Observer = Callable[[Tensor], None]
_OBSERVERS: "WeakKeyDictionary[nn.Module, Observer]" = WeakKeyDictionary()


def has_attended_keys(network: PreTrainedModel) -> bool:
    """Whether they can be observed, and serve queries and keys without rotary embedding: in
    families whose attention calls the function that its config names.
    """
    named = getattr(network.config, "_attn_implementation", None) == USUAL
    row = architecture_of(network)
    return named and row.position == "none" and bool(network._supports_attention_backend)


@contextmanager
def observed(network: PreTrainedModel, layer: nn.Module, observer: Observer) -> Iterator[None]:
    """Inside, `observer` is given of every batch that runs through a decoder layer the covariance
    of the attended keys, summed over its queries and averaged over the query heads of a group:
    [n_kv, d_h, d_h] float64. Only where `has_attended_keys`, and for a network of one's own: its
    config names another attention function meanwhile.
    """
    module, config = layer.get_submodule(architecture_of(network).attention), network.config
    _OBSERVERS[module] = observer
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = USUAL
        del _OBSERVERS[module]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as an attention function of transformers; query [b, n_q, t, d_h], key and value
    [b, n_kv, t, d_h], mask as for `scaled_dot_product_attention`, None: causal.
    """
    if (observer := _OBSERVERS.get(module)) is not None:
        each = zip(query, key, _rows(attention_mask, len(query)), strict=True)
        for q, k, mask in each:
            observer(covariances(q, k, mask, scaling))
    group = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(group, 1) for states in (key, value))
    out = scaled_dot_product_attention(
        query, key, value, attention_mask, is_causal=attention_mask is None, scale=scaling
    )
    return out.transpose(1, 2).contiguous(), None


def _rows(mask: Tensor | None, batch: int) -> list[Tensor | None]:
    """The mask of every window, [heads or 1, t, t] each."""
    if mask is None:
        return [None] * batch
    return [*mask.expand(batch, *mask.shape[1:])]


def covariances(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Of one window: sum over queries of the covariance of the keys under their weights, averaged
    over the query heads of a group, [n_kv, d_h, d_h] float64 of products in float32 at least.

    query [n_q, t, d_h]; key [n_kv, t, d_h]; mask [heads or 1, t, t], added where it is not boolean,
    None: causal; scaling: None stands for `d_h ** -0.5`.
    """
    group, key = len(query) // len(key), at_least_float32(key)
    key = key - key.mean(1, keepdim=True)  # the same of shifted keys: large means need not cancel
    weights = _weights(query, key.repeat_interleave(group, 0), mask, scaling)
    seen = weights.sum(1).unflatten(0, (-1, group)).sum(1)  # [n_kv, t]
    means = (weights @ key.repeat_interleave(group, 0)).unflatten(0, (-1, group)).flatten(1, 2)
    whole: Tensor = (key * seen.unsqueeze(-1)).mT @ key - means.mT @ means
    return exact(whole) / group


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Attention weights [n_q, t, t], in float32 at least."""
    query = at_least_float32(query)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = scale * (query @ key.to(query.dtype).mT)
    if mask is None:
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).tril()
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (scores + mask).softmax(-1)


AttentionInterface.register(NAME, _attend)
