"""The covariance of the keys that a query attends to, which measures changes of scores.

A change `d` of a query's scores changes its attention weights p, to second order, by the variance
of `d` over the keys under p. Scores `q . k` are linear in the keys, so the covariance of the keys
under p gives this variance.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from ..layers.linalg import to_float64
from ..layers.statistics import at_least_float32
from .architectures import architecture_of

NAME = "lrcore_attended_keys"  # of the attention function in transformers' AttentionInterface
REPLACED = "sdpa"  # the attention function that is replaced; it takes the same masks
Observer = Callable[[Tensor], None]
_OBSERVERS: "WeakKeyDictionary[nn.Module, Observer]" = WeakKeyDictionary()


def has_attended_keys(network: PreTrainedModel) -> bool:
    """Return True if the attended keys can be observed and are not rotated.

    The family's attention must call the attention function that its config names.
    """
    named = getattr(network.config, "_attn_implementation", None) == REPLACED
    row = architecture_of(network)
    return named and row.position == "none" and bool(network._supports_attention_backend)


@contextmanager
def observing_keys(
    network: PreTrainedModel, layer: nn.Module, observer: Observer
) -> Iterator[None]:
    """Pass the covariance of the attended keys to `observer` while the context is active.

    observer: called for each window that a decoder layer processes with the sum over the queries,
    averaged over the query heads of a group, [n_kv, d_h, d_h] float64.

    Requires `has_attended_keys`. The config names another attention function meanwhile, so no other
    thread may run the network.
    """
    module, config = layer.get_submodule(architecture_of(network).attention), network.config
    _OBSERVERS[module] = observer
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = REPLACED
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
    """Compute attention, and pass the covariance of the keys to the observer of the module, if any.

    The function has the interface of an attention function of transformers.

    query [b, n_q, t, d_h]; key, value [b, n_kv, t, d_h]; attention_mask as for
    `scaled_dot_product_attention`, None for causal attention.
    """
    if (observer := _OBSERVERS.get(module)) is not None:
        windows = zip(query, key, _rows(attention_mask, len(query)), strict=True)
        for q, k, mask in windows:
            observer(covariances(q, k, mask, scaling))
    group = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(group, 1) for states in (key, value))
    out = scaled_dot_product_attention(
        query, key, value, attention_mask, is_causal=attention_mask is None, scale=scaling
    )
    return out.transpose(1, 2).contiguous(), None


def _rows(mask: Tensor | None, batch: int) -> list[Tensor | None]:
    """Return the mask of each window, [heads or 1, t, t], or None."""
    if mask is None:
        return [None] * batch
    return [*mask.expand(batch, *mask.shape[1:])]


def covariances(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Return the covariance of the attended keys of a window, [n_kv, d_h, d_h] float64.

    It is summed over queries and averaged over the query heads of a group. Products are computed in
    float32 or float64.

    query [n_q, t, d_h]; key [n_kv, t, d_h]; mask [heads or 1, t, t], boolean or additive, None for
    causal attention; scaling: None for `d_h ** -0.5`.
    """
    group, key = len(query) // len(key), at_least_float32(key)
    # The covariance does not depend on the mean of the keys. Subtracting it reduces cancellation.
    key = key - key.mean(1, keepdim=True)
    weights = _weights(query, key.repeat_interleave(group, 0), mask, scaling)
    column_sums = weights.sum(1).unflatten(0, (-1, group)).sum(1)  # [n_kv, t]
    means = (weights @ key.repeat_interleave(group, 0)).unflatten(0, (-1, group)).flatten(1, 2)
    total: Tensor = (key * column_sums.unsqueeze(-1)).mT @ key - means.mT @ means
    return to_float64(total) / group


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Return attention weights [n_q, t, t] in float32 or float64."""
    query = at_least_float32(query)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = scale * (query @ key.to(query.dtype).mT)
    if mask is None:
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).tril()
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (scores + mask).softmax(-1)


AttentionInterface.register(NAME, _attend)
