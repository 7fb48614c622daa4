"""The tensors of a network as llama.cpp has them: dense matrices, heads of one size, its names.

llama.cpp has no factored matrices and one head size for queries, keys and values, so pairs are
multiplied out and what is missing of a head is filled with zeros. Neither changes what the model
computes.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..layer import Layer, Linear
from ..models.architectures import architecture_of, decoder_layers
from ..models.layers import read_layer
from ..models.offload import present
from .filling import dense_projection, filled_heads, filled_mlp
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
    network: PreTrainedModel, family: GgufFamily, width: int | None, kv_heads: int | None
) -> Iterator[tuple[str, Tensor]]:
    """The name and tensor [out, in] or [d] of every weight, one layer at a time; a tied head once,
    where the family allows that.

    width, kv_heads: to which all MLPs and heads are filled with zeros; None: each has its own.
    """
    row = architecture_of(network)
    embedding: Tensor = network.get_input_embeddings().weight
    yield "token_embd.weight", embedding
    for index, module in enumerate(decoder_layers(network)):
        with present(module):
            for name, norm in family.norms.items():
                yield f"blk.{index}.{name}.weight", _weight(module, norm) + row.norm_offset
            layer = read_layer(network, index)
            for name, linear in dense_layer(layer, family.neighbours, width, kv_heads).items():
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


def dense_layer(
    layer: Layer, neighbours: bool, width: int | None = None, kv_heads: int | None = None
) -> dict[str, Linear]:
    """The projections of a layer by name, multiplied out, with whole heads; filled with neurons and
    heads of zero up to `width` and `kv_heads`, where they are given.
    """
    a, m = layer.attention, layer.mlp
    assert m is not None  # refused before
    a = filled_heads(a, kv_heads or a.n_kv)
    m = filled_mlp(m, width or len(m.up.weight))
    whole = replace(layer, attention=a, mlp=m)
    dense = {name: dense_projection(p) for name, p in whole.matrices().items()}
    for name in "qk" if neighbours else "":
        count = a.n_q if name == "q" else a.n_kv
        weight, bias = dense[name].weight, dense[name].bias
        ordered = None if bias is None else side_by_side(bias, count)
        dense[name] = Linear(side_by_side(weight, count), ordered)
    return dense


def side_by_side(tensor: Tensor, count: int) -> Tensor:
    """Rows of `count` heads, [count * size, ...], with the two of every rotary pair side by side,
    instead of one in each half of its head.
    """
    halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
