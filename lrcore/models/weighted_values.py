"""Attention-weighted values: the value states of every kv head under every query head's weights.

Collected from a layer of any family by running it with its value heads permuted.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError
from ..modules.compressed import CompressedAttention
from .architectures import architecture_of
from .layers import projection_paths
from .native import head_sizes, rows_of

WIDEST = 4096  # numbers per token: their second moment takes 134 MB per layer


class _Stop(Exception):
    """Ends a forward pass once the input of the output projection is known."""


def weighted_values(
    network: PreTrainedModel,
    layer: nn.Module,
    hidden: Tensor,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Tensor:
    """Attention-weighted values of a layer, biases included: [b, t, n_q * n_kv * d_h].

    args, kwargs: what the layer is called with besides hidden [b, t, d]. The attention runs once
    per kv head: in run j every query head reads the values of the j-th kv head after its own.
    Raises InputError where values are cached latents or heads are summed, or wider than `WIDEST`.
    """
    row = architecture_of(network)
    paths = projection_paths(row, layer)
    n_q, n_kv, size, columns = _value_heads(network, layer.get_submodule(row.attention))
    columns = columns.to(hidden.device)
    out = hidden.new_empty(*hidden.shape[:-1], n_q, n_kv, size)
    own = torch.arange(n_q, device=hidden.device) // (n_q // n_kv)
    for shift in range(n_kv):

        def permute(_module: nn.Module, _args: Any, states: Tensor, shift: int = shift) -> Tensor:
            return states.index_copy(-1, columns, states[..., columns].roll(-shift * size, -1))

        def keep(_module: nn.Module, inputs: tuple[Tensor, ...], shift: int = shift) -> None:
            states = inputs[0].reshape(*out.shape[:-2], size)
            out[..., torch.arange(n_q, device=own.device), (own + shift) % n_kv, :] = states
            raise _Stop

        hooks = (
            layer.get_submodule(paths["v"]).register_forward_hook(permute),
            layer.get_submodule(paths["o"]).register_forward_pre_hook(keep),
        )
        try:
            with suppress(_Stop):
                layer(hidden, *args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
    return out.flatten(-3)


def _value_heads(network: PreTrainedModel, attention: nn.Module) -> tuple[int, int, int, Tensor]:
    """The query heads and kv heads of an attention, the size of a value head, and the columns of
    what gives its values that they are. Raises InputError as `weighted_values` does.
    """
    row = architecture_of(network)
    if row.factors is not None:
        raise InputError(
            "Attention-weighted values are those of kv heads, but the attention of this family "
            "stays its own, or caches latents. Choose another value of the option that needs them "
            "(vo=split)."
        )
    if isinstance(attention, CompressedAttention):
        if attention.latent or attention.summed:
            raise InputError(
                "Attention-weighted values are those of kv heads, but this model caches latents or "
                "sums its heads. Start from the dense model."
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
            f"{size} are {n_q * n_kv * size} numbers per token; their moments are collected up to "
            f"{WIDEST}. Choose another value of the option that needs them (vo=joint)."
        )
    return n_q, n_kv, size, columns
