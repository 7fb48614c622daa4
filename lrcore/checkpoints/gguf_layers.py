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
from .gguf_families import GgufFamily

NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def named_tensors(
    network: PreTrainedModel, family: GgufFamily, width: int | None
) -> Iterator[tuple[str, Tensor]]:
    """The name and tensor [out, in] or [d] of every weight, one layer at a time; a tied head once,
    where the family allows that.

    width: to which all MLPs are filled with zeros; None: each has its own.
    """
    row = architecture_of(network)
    embedding: Tensor = network.get_input_embeddings().weight
    yield "token_embd.weight", embedding
    for index, module in enumerate(decoder_layers(network)):
        with present(module):
            for name, norm in family.norms.items():
                yield f"blk.{index}.{name}.weight", _weight(module, norm) + row.norm_offset
            layer = read_layer(network, index)
            for name, linear in dense_layer(layer, family.neighbours, width).items():
                yield f"blk.{index}.{NAMES[name]}.weight", linear.weight
                if linear.bias is not None:
                    yield f"blk.{index}.{NAMES[name]}.bias", linear.bias
    yield "output_norm.weight", _weight(network, row.last_norm) + row.norm_offset
    if family.head == "own" or not tied(network):
        head: Tensor = network.get_output_embeddings().weight
        yield "output.weight", head


def tied(network: PreTrainedModel) -> bool:
    """Whether the output embedding is the input embedding."""
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    return bool(head.weight.data_ptr() == embedding.weight.data_ptr())


def _weight(module: nn.Module, path: str) -> Tensor:
    weight: Tensor = module.get_parameter(f"{path}.weight")
    return weight


def dense_layer(layer: Layer, neighbours: bool, width: int | None = None) -> dict[str, Linear]:
    """The projections of a layer by name, multiplied out, with whole heads; an MLP narrower than
    `width` is filled with neurons of zero.
    """
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
    missing = 0 if width is None else width - dense["up"].weight.shape[0]
    for name in ("gate", "up", "down") if missing else ():
        space = (0, missing) if name == "down" else (0, 0, 0, missing)
        dense[name] = Linear(nn.functional.pad(dense[name].weight, space), dense[name].bias)
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
