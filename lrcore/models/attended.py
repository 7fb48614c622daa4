"""What each query head attends to in the values of all heads: the layer, of any family, is run
with its value heads exchanged.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..modules.compressed import CompressedAttention
from .architectures import architecture_of
from .native import head_sizes, rows_of

WIDEST = 4096  # numbers per token: their second moment takes 134 MB per layer


class _Seen(Exception):
    """Ends a run once the input of the output projection is known."""


def attended_values(
    network: nn.Module, layer: nn.Module, hidden: Tensor, args: tuple, kwargs: Mapping[str, Any]
) -> Tensor:
    """Value states of every kv head as every query head attends to them, biases in them: [b, t, n_q
    * n_kv * d_h].

    layer: a dense decoder layer; args, kwargs: what it is called with besides hidden [b, t, d]. One
    run of its attention for each kv head: in the j-th, every query head reads the values of the
    j-th kv head after its own. Raises InputError for one too wide, or narrowed.
    """
    row = architecture_of(network)
    attention = layer.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        raise InputError(
            "What heads attend to is collected from the model's own attention; this one's is "
            "narrower. Start from the dense model."
        )
    paths, sizes = row.paths(), head_sizes(network, attention)
    n_q, n_kv, size = sizes.n_q, sizes.n_kv, sizes.head_size
    if n_q * n_kv * size > WIDEST:
        raise InputError(
            f"What {n_q} heads attend to in {n_kv} value heads of {size} is {n_q * n_kv * size} "
            "numbers per token; their moments are "
            f"collected up to {WIDEST}. Choose another value of the option that asks for them "
            "(vo=joint)."
        )
    columns = rows_of(row, sizes, "v").to(hidden.device)
    out = hidden.new_empty(*hidden.shape[:-1], n_q, n_kv, size)
    own = torch.arange(n_q, device=hidden.device) // (n_q // n_kv)
    for turn in range(n_kv):

        def exchange(_module: nn.Module, _args: tuple, states: Tensor, turn: int = turn) -> Tensor:
            return states.index_copy(-1, columns, states[..., columns].roll(-turn * size, -1))

        def keep(_module: nn.Module, inputs: tuple, turn: int = turn) -> None:
            out[..., torch.arange(n_q, device=own.device), (own + turn) % n_kv, :] = inputs[
                0
            ].reshape(*out.shape[:-2], size)
            raise _Seen

        hooks = (
            layer.get_submodule(paths["v"]).register_forward_hook(exchange),
            layer.get_submodule(paths["o"]).register_forward_pre_hook(keep),
        )
        try:
            with suppress(_Seen):
                layer(hidden, *args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
    return out.flatten(-3)
