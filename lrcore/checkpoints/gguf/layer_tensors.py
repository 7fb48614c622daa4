"""Tensors of a network by llama.cpp's names: dense matrices and full-size heads.

llama.cpp has neither factored matrices nor separate head sizes of queries, keys and values.
Therefore factors are multiplied out and heads are padded with zeros, which does not change the
outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...layers.layer import Layer, Linear
from ...models.architectures import architecture_of, decoder_layers
from ...models.layers import read_layer
from ...models.offload import present
from ..padding import dense_projection, pad_heads, pad_mlp
from .gguf_fit import FileLayer, GgufFamily, is_tied, rotary_factors

NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def tensor_shapes(
    network: PreTrainedModel, family: GgufFamily, layers: Sequence[FileLayer]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in the order of `named_tensors`, without computing
    tensors."""
    row, embedding = architecture_of(network), network.get_input_embeddings().weight
    shapes: dict[str, tuple[int, ...]] = {}
    if rotary_factors(network):
        shapes["rope_freqs.weight"] = (layers[0].head_size // 2,)
    shapes["token_embd.weight"] = tuple(embedding.shape)
    for index, (module, layer) in enumerate(zip(decoder_layers(network), layers, strict=True)):
        for name, norm in family.norms.items():
            shapes[f"blk.{index}.{name}.weight"] = tuple(_weight(module, norm).shape)
        for name, shape in _matrix_shapes(layer, embedding.shape[1]).items():
            shapes[f"blk.{index}.{NAMES[name]}.weight"] = shape
            if name in layer.biases:
                shapes[f"blk.{index}.{NAMES[name]}.bias"] = shape[:1]
    shapes["output_norm.weight"] = tuple(_weight(network, row.last_norm).shape)
    if _has_head(network, family):
        shapes["output.weight"] = tuple(network.get_output_embeddings().weight.shape)
    return shapes


def _matrix_shapes(layer: FileLayer, width: int) -> dict[str, tuple[int, int]]:
    """Return the shapes [out, in] of a layer's matrices. width: of the residual stream."""
    keys = layer.file_kv_heads * layer.head_size
    queries = keys * layer.group
    return {
        "q": (queries, width),
        "k": (keys, width),
        "v": (keys, width),
        "o": (width, queries),
        "gate": (layer.file_width, width),
        "up": (layer.file_width, width),
        "down": (width, layer.file_width),
    }


def named_tensors(
    network: PreTrainedModel, family: GgufFamily, layers: Sequence[FileLayer]
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor [out, in] or [d] of each weight; a tied head once, if possible."""
    row = architecture_of(network)
    if factors := rotary_factors(network):
        yield "rope_freqs.weight", torch.tensor(factors, dtype=torch.float32)
    embedding: Tensor = network.get_input_embeddings().weight
    yield "token_embd.weight", embedding
    for index, (module, sizes) in enumerate(zip(decoder_layers(network), layers, strict=True)):
        with present(module):
            for name, norm in family.norms.items():
                yield f"blk.{index}.{name}.weight", _weight(module, norm) + row.norm_offset
            layer = read_layer(network, index)
            matrices = dense_layer(layer, family.neighbors, sizes.file_width, sizes.file_kv_heads)
            for name, linear in matrices.items():
                yield f"blk.{index}.{NAMES[name]}.weight", linear.weight
                if linear.bias is not None:
                    yield f"blk.{index}.{NAMES[name]}.bias", linear.bias
    yield "output_norm.weight", _weight(network, row.last_norm) + row.norm_offset
    if _has_head(network, family):
        head: Tensor = network.get_output_embeddings().weight
        yield "output.weight", head


def _has_head(network: PreTrainedModel, family: GgufFamily) -> bool:
    return family.head == "separate" or not is_tied(network)


def _weight(module: nn.Module, path: str) -> Tensor:
    weight: Tensor = module.get_parameter(f"{path}.weight")
    return weight


def dense_layer(layer: Layer, neighbors: bool, width: int, kv_heads: int) -> dict[str, Linear]:
    """Return the projections of a layer by name, multiplied out and padded with zeros.

    neighbors: interleave rotary pairs. width: of the MLP. kv_heads: full-size heads of keys.
    """
    a, m = layer.attention, layer.mlp
    assert m is not None  # checked before
    a = pad_heads(a, kv_heads)
    padded = replace(layer, attention=a, mlp=pad_mlp(m, width))
    matrices = {name: dense_projection(p) for name, p in padded.matrices().items()}
    for name in "qk" if neighbors else "":
        count = a.n_q if name == "q" else a.n_kv
        weight, bias = matrices[name].weight, matrices[name].bias
        ordered = None if bias is None else interleaved(bias, count)
        matrices[name] = Linear(interleaved(weight, count), ordered)
    return matrices


def interleaved(tensor: Tensor, count: int) -> Tensor:
    """Reorder rows of `count` heads, [count * size, ...], from halves to interleaved pairs."""
    halves = tensor.reshape(count, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)
