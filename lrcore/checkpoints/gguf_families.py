"""How families of transformers stand in a GGUF file: the name there, norms, rotary pairs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
    """A row of the table.

    name: llama.cpp's architecture. norms: of a layer, by name in the file the path in the layer.
    neighbours: a rotary pair is two columns side by side, and not one of each half. activation: of
    the MLP's gate, as transformers names it. plain: computes what a `deci` computes, whose layers
    have sizes, biases and scaled angles of their own; another has one width, and no biases. head:
    whether the output embedding is a tensor of its own, the input embedding, or either.
    multipliers: further settings, by name the field of the config.
    """

    name: str
    norms: Mapping[str, str] = field(default_factory=lambda: NORMS_BEFORE)
    neighbours: bool = False
    activation: str = "silu"
    plain: bool = False
    head: Literal["own", "tied", "either"] = "either"
    multipliers: Mapping[str, str] = field(default_factory=dict)


GGUF_FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily("llama", neighbours=True, plain=True),
    "mistral": GgufFamily("llama", neighbours=True, plain=True),
    "qwen2": GgufFamily("qwen2", plain=True),
    "qwen3": GgufFamily("qwen3", norms=NORMS_BEFORE | NORMS_OF_HEADS),
    "olmo2": GgufFamily("olmo2", norms=NORMS_AFTER | NORMS_OF_HEADS, head="own"),
    "granite": GgufFamily("granite", neighbours=True, multipliers=MULTIPLIERS),
    "gemma": GgufFamily("gemma", activation="gelu_pytorch_tanh", head="tied"),
}
