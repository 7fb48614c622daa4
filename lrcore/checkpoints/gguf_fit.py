"""What llama.cpp has a place for: which models can be GGUF files, and of which architecture.

Where all layers have the same sizes the file has the architecture of the family; elsewhere it is a
`deci`, the one architecture of llama.cpp whose layers have sizes of their own.
"""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..errors import InputError
from ..layer import Layer, Linear
from ..models.architectures import MULTIMODAL, decoder_layers, text_config
from ..models.layers import read_layer
from .plain import FAMILIES, layer_misfit, network_misfit

NAMES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2"}  # of FAMILIES in llama.cpp
UNEVEN = "deci"


@dataclass(frozen=True)
class LayerFacts:
    """What one layer is in a file.

    width: of its MLP. biased: beyond queries, keys and values. factored: matrices to be multiplied
    out. narrowed: heads to be filled. cached: numbers per token in the cache of the model itself;
    cached_there: in that of llama.cpp.
    """

    heads: int
    kv_heads: int
    head_size: int
    width: int
    biased: bool
    factored: int
    narrowed: bool
    cached: int

    @property
    def cached_there(self) -> int:
        return 2 * self.kv_heads * self.head_size


def layer_facts(network: PreTrainedModel) -> list[LayerFacts]:
    """What every layer is in a file. Raises InputError where llama.cpp cannot run the network."""
    if reason := _refusal(network):
        raise InputError(f"llama.cpp cannot run this model: {reason}.")
    facts = []
    for index in range(len(decoder_layers(network))):
        layer = read_layer(network, index)
        if reason := layer_misfit(layer):
            raise InputError(f"llama.cpp cannot run this model: in layer {index} {reason}.")
        facts.append(_facts(layer))
    return facts


def _refusal(network: PreTrainedModel) -> str:
    """Why a network cannot be written, whatever its layers; "" where it can."""
    config = text_config(network)
    if config.model_type not in FAMILIES or network.config.model_type in MULTIMODAL:
        return (
            f"it is of the family {network.config.model_type}, and GGUF files are written of "
            f"{', '.join(FAMILIES)}; export it as a folder"
        )
    return network_misfit(network)


def _facts(layer: Layer) -> LayerFacts:
    a, m = layer.attention, layer.mlp
    assert m is not None  # refused before
    return LayerFacts(
        heads=a.n_q,
        kv_heads=a.n_kv,
        head_size=a.head_size,
        width=m.up.weight.shape[0],
        biased=any(p is not None and p.bias is not None for p in (a.o, m.gate, m.up, m.down)),
        factored=sum(not isinstance(p, Linear) for p in layer.matrices().values()),
        narrowed=(a.qk_size, a.v_size) != (a.head_size, a.head_size),
        cached=a.kv_values,
    )


def architecture_for(network: PreTrainedModel, layers: list[LayerFacts]) -> str:
    """llama.cpp's architecture for a network whose layers it can run."""
    family = NAMES[text_config(network).model_type]
    if len({(one.heads, one.kv_heads, one.width) for one in layers}) > 1:
        return UNEVEN
    # a qwen2 has no place for these
    more = any(one.biased for one in layers) or bool(rotary_factors(network))
    return UNEVEN if family == "qwen2" and more else family


def rotary_factors(network: PreTrainedModel) -> list[float]:
    """By what the angle of every rotary pair is divided; nothing where that is 1."""
    a = read_layer(network, 0).attention
    assert a.frequencies is not None  # refused before
    base = float(text_config(network).rope_parameters["rope_theta"])
    exponents = torch.arange(0, a.head_size, 2, dtype=torch.float64) / a.head_size
    factors = base**-exponents / a.frequencies.double().cpu()
    plain = torch.allclose(factors, torch.ones_like(factors), rtol=1e-4)
    return [] if plain else [float(factor) for factor in factors]
