"""The model families in GGUF files, and the sizes of a network's layers in a file.

If all layers have the same sizes, the file has the architecture of the family. Otherwise it has the
architecture `deci`, the only one of llama.cpp whose sizes differ by layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from transformers import PreTrainedModel

from ...layers.layer import Layer, Linear
from ...models.architectures import MULTIMODAL, decoder_layers, text_config
from ...models.gguf_import import PER_LAYER_ARCHITECTURE
from ...models.layers import read_layer
from ...system.errors import InputError
from ..padding import output_size
from ..unsupported import unsupported_layer, unsupported_network

NORMS_BEFORE = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
NORMS_OF_HEADS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}


@dataclass(frozen=True)
class GgufFamily:
    """A model family in GGUF files.

    name: llama.cpp's architecture. norms: paths of a layer's norms by their names in the file.
    neighbors: rotary pairs are interleaved; otherwise a pair has a column in each half of a head.
    activation: of the MLP's gate, by transformers' name. plain: layers compute the same as those of
    a `deci`, which may differ in size, have biases and scale rotary angles; other families have a
    common width and no biases. head: whether the output embedding is a separate tensor, the input
    embedding, or either. multipliers: config fields of further settings, by setting.
    """

    name: str
    norms: Mapping[str, str] = field(default_factory=lambda: NORMS_BEFORE)
    neighbors: bool = False
    activation: str = "silu"
    plain: bool = False
    head: Literal["separate", "tied", "either"] = "either"
    multipliers: Mapping[str, str] = field(default_factory=dict)


GGUF_FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("llama", neighbors=True, plain=True),
    "mistral": GgufFamily("llama", neighbors=True, plain=True),
    "qwen2": GgufFamily("qwen2", plain=True),
    "qwen3": GgufFamily("qwen3", norms=NORMS_BEFORE | NORMS_OF_HEADS),
    "olmo2": GgufFamily("olmo2", norms=NORMS_AFTER | NORMS_OF_HEADS, head="separate"),
    "granite": GgufFamily("granite", neighbors=True, multipliers=MULTIPLIERS),
    "gemma": GgufFamily("gemma", activation="gelu_pytorch_tanh", head="tied"),
}


@dataclass(frozen=True)
class FileLayer:
    """Sizes of a layer, in the model and in the file.

    group: query heads per kv head. width: of the MLP. file_kv_heads, file_width: in the file.
    biases: projections with a bias. factored: matrices to be multiplied out. narrowed: whether
    heads must be padded. cached: numbers per token in the cache of the model; file_cached: in that
    of llama.cpp.
    """

    group: int
    kv_heads: int
    file_kv_heads: int
    head_size: int
    width: int
    file_width: int
    biases: frozenset[str]
    factored: int
    narrowed: bool
    cached: int

    @property
    def file_cached(self) -> int:
        return 2 * self.file_kv_heads * self.head_size


def file_layers(network: PreTrainedModel) -> list[FileLayer]:
    """Return the sizes of all layers. Raises InputError if llama.cpp cannot run the network."""
    if reason := _unsupported(network):
        raise InputError(f"llama.cpp cannot run this model: {reason}.")
    family, layers = GGUF_FAMILIES[text_config(network).model_type], []
    any_scale = "attention.scale" in family.multipliers
    for index in range(len(decoder_layers(network))):
        layer = read_layer(network, index)
        reason = unsupported_layer(layer, family.activation, any_scale)
        if reason := reason or _unsupported_biases(layer, family):
            raise InputError(f"llama.cpp cannot run this model: in layer {index} {reason}.")
        layers.append(_file_layer(layer))
    if family.plain:
        return layers
    width = max(layer.width for layer in layers)
    kv_heads = max(layer.kv_heads for layer in layers)
    return [replace(layer, file_width=width, file_kv_heads=kv_heads) for layer in layers]


def _unsupported_biases(layer: Layer, family: GgufFamily) -> str:
    """Describe biases that llama.cpp's architecture does not support, or return ""."""
    if not family.plain and any(p.bias is not None for p in layer.matrices().values()):
        return (
            f"matrices have biases, which {family.name} in llama.cpp does not support (fused and "
            "flap add biases; a3 and modegpt do not)"
        )
    return ""


def _unsupported(network: PreTrainedModel) -> str:
    """Describe a property of the network, other than its layers, that prevents an export."""
    config = text_config(network)
    if config.model_type not in GGUF_FAMILIES or network.config.model_type in MULTIMODAL:
        return (
            f"its family is {network.config.model_type}, but GGUF files can be written for "
            f"{', '.join(GGUF_FAMILIES)}; export it as a folder"
        )
    if reason := unsupported_network(network):
        return reason
    family = GGUF_FAMILIES[config.model_type]
    if not family.plain and rotary_factors(network):
        return f"its rotary positions are scaled, which {family.name} in llama.cpp does not support"
    if family.head == "tied" and not is_tied(network):
        return f"its output embedding is not the input embedding, as {family.name} requires"
    return ""


def _file_layer(layer: Layer) -> FileLayer:
    a, m = layer.attention, layer.mlp
    assert m is not None  # checked before
    width = output_size(m.up)
    matrices = layer.matrices()
    return FileLayer(
        group=a.group,
        kv_heads=a.n_kv,
        file_kv_heads=a.n_kv,
        head_size=a.head_size,
        width=width,
        file_width=width,
        biases=frozenset(name for name, p in matrices.items() if p.bias is not None),
        factored=sum(not isinstance(p, Linear) for p in matrices.values()),
        narrowed=(a.qk_size, a.v_size) != (a.head_size, a.head_size),
        cached=a.kv_values,
    )


def file_family(network: PreTrainedModel, layers: list[FileLayer]) -> GgufFamily:
    """Return the family of a network's file, or a `deci` if the family cannot represent the
    layers."""
    family = GGUF_FAMILIES[text_config(network).model_type]
    is_uneven = len({(layer.group, layer.kv_heads, layer.width) for layer in layers}) > 1
    # A qwen2 has biases of queries, keys and values only, and no scaled positions.
    is_extended = any(layer.biases - set("qkv") for layer in layers) or bool(
        rotary_factors(network)
    )
    if family.plain and (is_uneven or (is_extended and not family.neighbors)):
        return replace(family, name=PER_LAYER_ARCHITECTURE, neighbors=True)
    return family


def rotary_factors(network: PreTrainedModel) -> list[float]:
    """Return the divisor of each rotary pair's angle; [] if all are 1."""
    a = read_layer(network, 0).attention
    assert a.frequencies is not None  # checked before
    base = float(text_config(network).rope_parameters["rope_theta"])
    exponents = torch.arange(0, a.head_size, 2, dtype=torch.float64) / a.head_size
    factors = base**-exponents / a.frequencies.cpu().double()
    are_ones = torch.allclose(factors, torch.ones_like(factors), rtol=1e-4)
    return [] if are_ones else [float(factor) for factor in factors]


def is_tied(network: PreTrainedModel) -> bool:
    """Return True if the output embedding is the input embedding."""
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    return bool(head.weight.data_ptr() == embedding.weight.data_ptr())
