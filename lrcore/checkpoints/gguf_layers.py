"""The tensors of a network as llama.cpp has them: dense matrices, heads of one size, its names.

llama.cpp has no factored matrices and one head size for queries, keys and values, so pairs are
multiplied out and what is missing of a head is filled with zeros. Neither changes what the model
computes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..layer import Attention, Layer, Linear, heads, merge_output_heads, output_heads
from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import read_layer
from ..models.offload import present

NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
NORMS = ("attn_norm", "ffn_norm")


def named_tensors(network: PreTrainedModel, neighbours: bool) -> Iterator[tuple[str, Tensor]]:
    """The name and tensor [out, in] or [d] of every weight, one layer at a time; a tied head once.

    neighbours: a rotary pair is two columns side by side, as in `llama`, and not one of each half.
    """
    row = architecture_of(network)
    embedding: Tensor = network.get_input_embeddings().weight
    yield "token_embd.weight", embedding
    for index, module in enumerate(decoder_layers(network)):
        with present(module):
            for name, norm in zip(NORMS, row.block_norms, strict=True):
                yield f"blk.{index}.{name}.weight", _weight(module, norm)
            for name, linear in dense_layer(read_layer(network, index), neighbours).items():
                yield f"blk.{index}.{NAMES[name]}.weight", linear.weight
                if linear.bias is not None:
                    yield f"blk.{index}.{NAMES[name]}.bias", linear.bias
    yield "output_norm.weight", _weight(network, row.last_norm)
    head: Tensor = network.get_output_embeddings().weight
    if head.data_ptr() != embedding.data_ptr():
        yield "output.weight", head


def _weight(module: nn.Module, path: str) -> Tensor:
    weight: Tensor = module.get_parameter(f"{path}.weight")
    return weight


def dense_layer(layer: Layer, neighbours: bool) -> dict[str, Linear]:
    """The projections of a layer by name, multiplied out, with whole heads."""
    dense = {name: Linear(p.weight, p.bias) for name, p in layer.matrices().items()}
    a = layer.attention
    for name in "qkv":
        dense[name] = _whole(dense[name], a, name)
    dense["o"] = Linear(_whole_outputs(dense["o"].weight, a), dense["o"].bias)
    for name in "qk" if neighbours else "":
        count = a.n_q if name == "q" else a.n_kv
        weight, bias = dense[name].weight, dense[name].bias
        ordered = None if bias is None else side_by_side(bias, count)
        dense[name] = Linear(side_by_side(weight, count), ordered)
    return dense


def _whole(linear: Linear, a: Attention, name: str) -> Linear:
    """Queries, keys or values with head_size rows per head: those that are gone are zero."""
    places, count = _places(a, name), a.n_q if name == "q" else a.n_kv
    if places is None:
        return linear
    bias = None if linear.bias is None else _spread(linear.bias, places, count, a.head_size)
    return Linear(_spread(linear.weight, places, count, a.head_size), bias)


def _places(a: Attention, name: str) -> Tensor | None:
    """Where the rows of every head stand in a whole head, [heads, size]; None where it is whole."""
    if name == "v":
        rows = torch.arange(a.v_size).expand(a.n_kv, -1)
        return None if a.v_size == a.head_size else rows
    if a.rotary_pairs is None:
        return None
    pairs = a.rotary_pairs.long().cpu()
    rows = torch.cat((pairs, pairs + a.head_size // 2), dim=1)
    return rows.repeat_interleave(a.group, dim=0) if name == "q" else rows


def _spread(tensor: Tensor, places: Tensor, count: int, size: int) -> Tensor:
    """Rows [count * kept, ...] at their places in heads of `size` rows, [count * size, ...]."""
    own = heads(tensor, count)
    whole = own.new_zeros(count, size, *own.shape[2:])
    for head, rows in enumerate(places.to(own.device)):
        whole[head, rows] = own[head]
    return whole.flatten(0, 1)


def _whole_outputs(weight: Tensor, a: Attention) -> Tensor:
    """The output projection [d, n_q * v_size] for whole heads, [d, n_q * head_size]."""
    missing = a.head_size - a.v_size
    own = output_heads(weight, a.n_q)
    return merge_output_heads(torch.nn.functional.pad(own, (0, missing))) if missing else weight


def side_by_side(tensor: Tensor, count: int) -> Tensor:
    """Rows of `count` heads, [count * size, ...], with the two of every rotary pair side by side,
    instead of one in each half of its head.
    """
    halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
