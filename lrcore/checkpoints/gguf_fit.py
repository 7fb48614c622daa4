"""What llama.cpp has a place for: which models can be GGUF files, and of which architecture.

Where all layers have the same sizes the file has the architecture of the family; elsewhere it is a
`deci`, the one architecture of llama.cpp whose layers have sizes of their own.
"""

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from ..errors import InputError
from ..layer import Layer, Linear
from ..models.architectures import MULTIMODAL, decoder_layers, text_config
from ..models.gguf import UNEVEN
from ..models.layers import read_layer
from .gguf_families import GGUF_FAMILIES, GgufFamily
from .gguf_layers import tied
from .plain import layer_misfit, network_misfit


@dataclass(frozen=True)
class LayerFacts:
    """What one layer is in a file.

    width: of its MLP; width_there, kv_heads_there: in the file. biased: beyond queries, keys and
    values. factored: matrices to be multiplied out. narrowed: heads to be filled. cached: numbers
    per token in the cache of the model itself; cached_there: in that of llama.cpp.
    """

    group: int
    kv_heads: int
    kv_heads_there: int
    head_size: int
    width: int
    width_there: int
    biased: bool
    factored: int
    narrowed: bool
    cached: int

    @property
    def cached_there(self) -> int:
        return 2 * self.kv_heads_there * self.head_size


def layer_facts(network: PreTrainedModel) -> list[LayerFacts]:
    """What every layer is in a file. Raises InputError where llama.cpp cannot run the network."""
    if reason := _refusal(network):
        raise InputError(f"llama.cpp cannot run this model: {reason}.")
    family, facts = GGUF_FAMILIES[text_config(network).model_type], []
    for index in range(len(decoder_layers(network))):
        layer = read_layer(network, index)
        scaled = "attention.scale" in family.multipliers
        reason = layer_misfit(layer, family.activation, scaled) or _family_misfit(layer, family)
        if reason:
            raise InputError(f"llama.cpp cannot run this model: in layer {index} {reason}.")
        facts.append(_facts(layer))
    if family.plain:
        return facts
    width, kv_heads = (max(getattr(one, name) for one in facts) for name in ("width", "kv_heads"))
    return [replace(one, width_there=width, kv_heads_there=kv_heads) for one in facts]


def _family_misfit(layer: Layer, family: GgufFamily) -> str:
    """What llama.cpp's architecture has no place for in a layer that plain ones have."""
    if not family.plain and any(p.bias is not None for p in layer.matrices().values()):
        return (
            f"matrices have biases, which its {family.name} has no place for (fused and flap add "
            "some; a3 and modegpt do not)"
        )
    return ""


def _refusal(network: PreTrainedModel) -> str:
    """Why a network cannot be written, whatever its layers; "" where it can."""
    config = text_config(network)
    if config.model_type not in GGUF_FAMILIES or network.config.model_type in MULTIMODAL:
        return (
            f"it is of the family {network.config.model_type}, and GGUF files are written of "
            f"{', '.join(GGUF_FAMILIES)}; export it as a folder"
        )
    if reason := network_misfit(network):
        return reason
    family = GGUF_FAMILIES[config.model_type]
    if not family.plain and rotary_factors(network):
        return f"its rotary positions are scaled, which its {family.name} has no place for"
    if family.head == "tied" and not tied(network):
        return f"its output embedding is not that of the input, as in its {family.name}"
    return ""


def _facts(layer: Layer) -> LayerFacts:
    a, m = layer.attention, layer.mlp
    assert m is not None  # refused before
    width = len(m.up.weight)
    return LayerFacts(
        group=a.group,
        kv_heads=a.n_kv,
        kv_heads_there=a.n_kv,
        head_size=a.head_size,
        width=width,
        width_there=width,
        biased=any(p is not None and p.bias is not None for p in (a.o, m.gate, m.up, m.down)),
        factored=sum(not isinstance(p, Linear) for p in layer.matrices().values()),
        narrowed=(a.qk_size, a.v_size) != (a.head_size, a.head_size),
        cached=a.kv_values,
    )


def file_family(network: PreTrainedModel, layers: list[LayerFacts]) -> GgufFamily:
    """How a network whose layers llama.cpp can run stands in a file: as its family, or as a
    `deci`.
    """
    family = GGUF_FAMILIES[text_config(network).model_type]
    uneven = len({(one.group, one.kv_heads, one.width) for one in layers}) > 1
    # a qwen2 has no place for these
    more = any(one.biased for one in layers) or bool(rotary_factors(network))
    if family.plain and (uneven or (more and not family.neighbours)):
        return replace(family, name=UNEVEN, neighbours=True)
    return family


def rotary_factors(network: PreTrainedModel) -> list[float]:
    """By what the angle of every rotary pair is divided; nothing where that is 1."""
    a = read_layer(network, 0).attention
    assert a.frequencies is not None  # refused before
    base = float(text_config(network).rope_parameters["rope_theta"])
    exponents = torch.arange(0, a.head_size, 2, dtype=torch.float64) / a.head_size
    factors = base**-exponents / a.frequencies.cpu().double()
    plain = torch.allclose(factors, torch.ones_like(factors), rtol=1e-4)
    return [] if plain else [float(factor) for factor in factors]
