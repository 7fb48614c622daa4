"""Native modules as values: which rows of a matrix are the queries, keys or gate; head sizes.

Fused matrices are split. Heads with partial rotary embedding, or with rotary pairs side by side,
are read in the layout of a whole rotary head (first halves, then second halves), where the columns
beyond the rotary part form pairs of angle zero. Contiguous rows are views, others copies.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..layer import Linear
from .architecture import Architecture
from .architectures import architecture_of, text_config


@dataclass(frozen=True)
class HeadSizes:
    """Head sizes of a dense attention.

    rotary: leading columns of a head that are rotated; head_size where all are, 0 without rotary.
    """

    n_q: int
    n_kv: int
    head_size: int
    rotary: int


def head_sizes(network: PreTrainedModel, attention: nn.Module) -> HeadSizes:
    """Sizes from the config, and from the module where only some layers have rotary embedding."""
    row, config = architecture_of(network), text_config(network)
    n_q = config.num_attention_heads
    # of a Falcon the module alone says it
    n_kv = getattr(attention, "num_kv_heads", None)
    n_kv = n_kv or getattr(config, "num_key_value_heads", None) or n_q
    size = getattr(config, "head_dim", None) or config.hidden_size // n_q
    rotary = row.position == "rotary" and row.rotated(attention)
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    part = getattr(config, "rotary_dim", None) or int(size * share)
    return HeadSizes(n_q, n_kv, size, part if rotary else 0)


def rows_of(row: Architecture, sizes: HeadSizes, name: str) -> Tensor:
    """Rows of the native matrix that hold queries, keys or values, in the layout of `Attention`.

    Returns indices [heads * head_size].
    """
    count, inner = sizes.n_q if name == "q" else sizes.n_kv, torch.arange(sizes.head_size)
    beside = row.pairs == "neighbours"
    if name != "v" and sizes.rotary and (beside or sizes.rotary < sizes.head_size):
        rotary, rest = inner[: sizes.rotary], inner[sizes.rotary :].view(2, -1)
        rotary = rotary.view(-1, 2).T if beside else rotary.view(2, -1)
        inner = torch.cat((rotary, rest), dim=1).flatten()
    place = "qkv".index(name)
    if row.qkv == "by_group":
        group, heads = sizes.n_q // sizes.n_kv, torch.arange(count)
        own = heads // group * 2 + heads if name == "q" else heads * (group + 2) + group + place - 1
        starts = own * sizes.head_size
    else:
        before = (0, sizes.n_q, sizes.n_q + sizes.n_kv)[place] if row.qkv == "stacked" else 0
        starts = (before + torch.arange(count)) * sizes.head_size
    return (starts.unsqueeze(1) + inner).flatten()


def take(tensor: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Entries of a tensor [..., n, ...] along a dimension by index [k]; a view if contiguous."""
    first, count = int(index[0]), len(index)
    if torch.equal(index, torch.arange(first, first + count)):
        return tensor.narrow(dim, first, count)
    return tensor.index_select(dim, index.to(tensor.device))


def linear_of(module: nn.Module, index: Tensor | None = None) -> Linear:
    """Weight [out, in] and bias [out] of a native projection, or of the rows in index [k]."""
    native: Any = module  # nn.Linear, or the Conv1D of transformers
    weight = native.weight.detach()
    weight = weight.T if isinstance(module, Conv1D) else weight
    bias = None if native.bias is None else native.bias.detach()
    if index is None:
        return Linear(weight, bias)
    return Linear(take(weight, index), None if bias is None else take(bias, index))


def gate_rows(module: Any, name: Literal["gate", "up"]) -> Tensor:
    """Rows of the gate or of up in a fused matrix: indices [d_f]."""
    half = module.weight.shape[0] // 2
    return torch.arange(half) + (half if name == "up" else 0)
