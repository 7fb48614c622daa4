"""Attention-weighted values: each kv head's values under each query head's attention weights.

They are collected by running a layer of any family with permuted value heads.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..layers.modules.compressed import CompressedAttention
from ..system.errors import InputError
from .architecture import Architecture
from .architectures import architecture_of
from .layers import projection_paths
from .native import head_sizes, rows_of

WIDEST = 4096  # numbers per token: their second moment takes 134 MB per layer


class _Stop(Exception):
    """Ends a forward pass when the input of the output projection is available."""


def weighted_values(
    network: PreTrainedModel,
    layer: nn.Module,
    hidden: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Tensor:
    """Return the attention-weighted values of a layer with biases, [b, t, n_q * n_kv * d_h].

    hidden [b, t, d], args and kwargs: arguments of the layer. The attention runs once per kv head:
    in run j each query head reads the values of the j-th kv head after that of its group. Raises
    InputError if values are cached as latents, if heads are summed, or above `WIDEST`.
    """
    row = architecture_of(network).of_layer(layer)
    paths = projection_paths(row, layer)
    n_q, n_kv, size, columns = _value_heads(network, row, layer.get_submodule(row.attention))
    columns = columns.to(hidden.device)
    out = hidden.new_empty(*hidden.shape[:-1], n_q, n_kv, size)
    kv_heads = torch.arange(n_q, device=hidden.device) // (n_q // n_kv)
    for shift in range(n_kv):

        def permute(_module: nn.Module, _args: Any, states: Tensor, shift: int = shift) -> Tensor:
            return states.index_copy(-1, columns, states[..., columns].roll(-shift * size, -1))

        def store(_module: nn.Module, inputs: tuple[Tensor, ...], shift: int = shift) -> None:
            states = inputs[0].reshape(*out.shape[:-2], size)
            heads = torch.arange(n_q, device=kv_heads.device)
            out[..., heads, (kv_heads + shift) % n_kv, :] = states
            raise _Stop

        hooks = (
            layer.get_submodule(paths["v"]).register_forward_hook(permute),
            layer.get_submodule(paths["o"]).register_forward_pre_hook(store),
        )
        try:
            with suppress(_Stop):
                layer(hidden, *args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
    return out.flatten(-3)


def _value_heads(
    network: PreTrainedModel, row: Architecture, attention: nn.Module
) -> tuple[int, int, int, Tensor]:
    """Return n_q, n_kv, the size of a value head, and the columns of the values.

    The columns index the output of the module that computes the values. Raises InputError as
    `weighted_values` does.
    """
    if row.factors is not None:
        raise InputError(
            "Attention-weighted values need kv heads, but the attention of this family cannot be "
            "replaced, or caches latents. Choose another value of the option that needs them "
            "(vo=split)."
        )
    if isinstance(attention, CompressedAttention):
        if attention.latent or attention.summed:
            raise InputError(
                "Attention-weighted values need kv heads, but this model caches latents or sums "
                "its heads. Start from the dense model."
            )
        n_q, n_kv, size = attention.n_q, attention.n_kv, attention.v_size
        columns = torch.arange(n_kv * size)
    else:
        sizes = head_sizes(network, attention)
        n_q, n_kv, size = sizes.n_q, sizes.n_kv, sizes.head_size
        columns = rows_of(row, sizes, "v")
    if n_q * n_kv * size > WIDEST:
        raise InputError(
            f"The attention-weighted values of {n_q} query heads and {n_kv} kv heads of size "
            f"{size} have {n_q * n_kv * size} numbers per token, but moments are collected of at "
            f"most {WIDEST}. Choose another value of the option that needs them (vo=joint)."
        )
    return n_q, n_kv, size, columns
