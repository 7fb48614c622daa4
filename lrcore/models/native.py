"""Native modules of the families: row layouts, head sizes and stacked experts.

Fused matrices are split. Heads with partial or interleaved rotary embedding are read in the layout
of a fully rotated head (first halves, then second halves), in which columns outside the rotary part
form pairs of angle zero. Contiguous rows are views, other rows are copies.

Most families stack gates above ups along the rows of a matrix. gpt-oss has transposed matrices,
interleaved gates and ups, and biases. transformers describes the layout of stacked experts by
attributes of the module (`use_experts_implementation`), except for Llama 4, whose matrices are
transposed, and for LongCat-Flash, some of whose experts have no matrices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..layers.layer import MLP, Linear
from .architecture import Architecture, module_at
from .architectures import architecture_of, text_config

PARTS = {"gate_up_proj": ("gate", "up"), "up_proj": ("up",), "down_proj": ("down",)}


@dataclass(frozen=True)
class HeadSizes:
    """Head sizes of a dense attention.

    rotary: number of leading columns of a head that are rotated; 0 without rotary embedding.
    """

    n_q: int
    n_kv: int
    head_size: int
    rotary: int


def head_sizes(network: PreTrainedModel, attention: nn.Module) -> HeadSizes:
    """Return the head sizes from the config, and from the module if layers differ."""
    row, config = architecture_of(network), text_config(network)
    n_q = config.num_attention_heads
    # Falcon stores the number of kv heads in the module only.
    n_kv = getattr(attention, "num_kv_heads", None)
    n_kv = n_kv or getattr(config, "num_key_value_heads", None) or n_q
    size = getattr(config, "head_dim", None) or config.hidden_size // n_q
    rotary = row.position == "rotary" and row.rotated(attention)
    return HeadSizes(n_q, n_kv, size, _rotary_size(network, size) if rotary else 0)


def _rotary_size(network: PreTrainedModel, head_size: int) -> int:
    """Return the number of rotated columns of a head.

    Some families, such as llama, rotate complete heads although their config has a
    partial_rotary_factor; then the network has a frequency for each pair of a head.
    """
    config, model = text_config(network), architecture_of(network).layers.rpartition(".")[0]
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    frequencies = getattr(module_at(network, f"{model}.rotary_emb"), "inv_freq", None)
    if frequencies is not None and 2 * len(frequencies) == head_size:
        return head_size
    return getattr(config, "rotary_dim", None) or int(head_size * share)


def rows_of(row: Architecture, sizes: HeadSizes, name: str) -> Tensor:
    """Return the rows of queries, keys or values in a native matrix, [heads * head_size].

    The rows are in the layout of `Attention`.
    """
    count, inner = sizes.n_q if name == "q" else sizes.n_kv, torch.arange(sizes.head_size)
    interleaved = row.pairs == "interleaved"
    if name != "v" and sizes.rotary and (interleaved or sizes.rotary < sizes.head_size):
        rotary, unrotated = inner[: sizes.rotary], inner[sizes.rotary :].view(2, -1)
        rotary = rotary.view(-1, 2).T if interleaved else rotary.view(2, -1)
        inner = torch.cat((rotary, unrotated), dim=1).flatten()
    position = "qkv".index(name)
    if row.qkv == "by_group":
        group, heads = sizes.n_q // sizes.n_kv, torch.arange(count)
        if name == "q":
            blocks = heads // group * 2 + heads
        else:
            blocks = heads * (group + 2) + group + position - 1
        starts = blocks * sizes.head_size
    else:
        before = (0, sizes.n_q, sizes.n_q + sizes.n_kv)[position] if row.qkv == "stacked" else 0
        starts = (before + torch.arange(count)) * sizes.head_size
    return (starts.unsqueeze(1) + inner).flatten()


def select_rows(tensor: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Select entries of a tensor [..., n, ...] by index [k] along dim; a view if contiguous."""
    first, count = int(index[0]), len(index)
    if torch.equal(index, torch.arange(first, first + count)):
        return tensor.narrow(dim, first, count)
    return tensor.index_select(dim, index.to(tensor.device))


def native_linear(module: nn.Module, index: Tensor | None = None) -> Linear:
    """Return weight [out, in] and bias [out] of a native projection, or the rows of index [k]."""
    native: Any = module  # nn.Linear, or Conv1D of transformers
    weight = native.weight.detach()
    weight = weight.T if isinstance(module, Conv1D) else weight
    bias = None if native.bias is None else native.bias.detach()
    if index is None:
        return Linear(weight, bias)
    return Linear(select_rows(weight, index), None if bias is None else select_rows(bias, index))


def gate_rows(module: Any, name: Literal["gate", "up"]) -> Tensor:
    """Return the rows of the gate or of up in a fused matrix, [d_f]."""
    half = module.weight.shape[0] // 2
    return torch.arange(half) + (half if name == "up" else 0)


@dataclass(frozen=True)
class ExpertsLayout:
    """Layout of stacked matrices.

    transposed: [experts, in, out]. concatenated: gates before ups; otherwise they are interleaved.
    """

    transposed: bool
    concatenated: bool
    biases: bool


def layout_of(native: Any) -> ExpertsLayout:
    """Return the layout of a stacked module."""
    if not hasattr(native, "is_transposed"):
        is_transposed = native.gate_up_proj.shape[1] == native.down_proj.shape[2]
        return ExpertsLayout(is_transposed, concatenated=True, biases=False)
    return ExpertsLayout(native.is_transposed, native.is_concatenated, native.has_bias)


def separate_experts(native: Any, activation: str) -> tuple[MLP, ...]:
    """Return the experts of a stacked module, as views of its tensors if possible."""
    parts = {name: leaf for leaf in PARTS if hasattr(native, leaf) for name in PARTS[leaf]}
    return tuple(
        MLP(
            **{name: _linear(native, leaf, name, number) for name, leaf in parts.items()},
            activation=activation,
        )
        for number in range(len(native.down_proj))
    )


def identities_of(native: Any) -> int:
    """Return the number of experts of a stacked module whose output is their input."""
    is_stacked = isinstance(getattr(native, "gate_up_proj", None), Tensor)
    return len(native.gate_up_proj) - len(native.down_proj) if is_stacked else 0


def _linear(native: Any, leaf: str, name: str, number: int) -> Linear:
    layout, weight = layout_of(native), getattr(native, leaf).detach()[number]
    weight = weight.T if layout.transposed else weight
    bias = getattr(native, f"{leaf}_bias").detach()[number] if layout.biases else None
    if len(PARTS[leaf]) == 1:
        return Linear(weight, bias)
    rows = _rows(layout, len(weight) // 2, PARTS[leaf].index(name))
    return Linear(weight[rows], None if bias is None else bias[rows])


def _rows(layout: ExpertsLayout, width: int, position: int) -> slice:
    """Return the rows of gates (position 0) or ups (1) in their common matrix."""
    if layout.concatenated:
        return slice(position * width, (position + 1) * width)
    return slice(position, None, 2)


def stack_parameter(native: Any, leaf: str, experts: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Stack the parameters of experts, which are named "gate_proj.weight" and so on.

    leaf: name of the stacked parameter, such as "gate_up_proj_bias". Returns [experts, ...].
    """
    kind = "bias" if leaf.endswith("_bias") else "weight"
    layout, parts = layout_of(native), PARTS[leaf.removesuffix("_bias")]
    tensors = []
    for expert in experts:
        separate_parts = [expert[f"{name}_proj.{kind}"] for name in parts]
        joined = torch.cat(separate_parts)
        for position, part in enumerate(separate_parts if len(separate_parts) > 1 else ()):
            joined[_rows(layout, len(part), position)] = part
        tensors.append(joined.T if layout.transposed and kind == "weight" else joined)
    return torch.stack(tensors)


def fill_stacked(native: Any, experts: Sequence[Mapping[str, Tensor]]) -> None:
    """Set the parameters [experts, ...] of a stacked module from those of its experts.

    experts: parameters by name, as in `stack_parameter`.
    """
    for name, parameter in list(native.named_parameters()):
        tensor = stack_parameter(native, name, experts).to(parameter.dtype).contiguous()
        setattr(native, name, nn.Parameter(tensor, requires_grad=False))
