"""Structures that targets of an export do not support.

Each function returns a description for an error message, or "" if the structure is supported.
"""

import math

from transformers import PreTrainedModel

from ..layers.layer import Attention, Layer
from ..models.architectures import text_config
from ..models.structure import sliced_modules
from .padding import frequencies, unrotated_pairs

FAMILIES = ("llama", "mistral", "qwen2")  # families whose layers MLA and `deci` can represent
FIXED_ANGLES = ("default", "linear", "llama3")  # rotary scalings by a constant factor per pair


def unsupported_network(network: PreTrainedModel) -> str:
    """Describe a network that GGUF and MLA do not support."""
    if sliced_modules(network):
        return (
            "its residual stream is sliced; export it with --standard if possible, and then export "
            "that folder"
        )
    scaling = text_config(network).rope_parameters.get("rope_type", "default")
    return "" if scaling in FIXED_ANGLES else f"its rotary positions are scaled by '{scaling}'"


def unsupported_layer(layer: Layer, activation: str = "silu", any_scale: bool = False) -> str:
    """Describe a layer that GGUF and MLA do not support.

    activation: required activation of the MLP's gate, by transformers' name. any_scale: the factor
    of scores may be any number.
    """
    a, m = layer.attention, layer.mlp
    if reason := _unsupported_attention(a):
        return reason
    tables = (a.frequencies, a.pair_frequencies)
    if any(table is None or bool((table == 0).any()) for table in tables):
        return "parts of a head are not rotated"
    if m is None or m.gate is None or m.activation != activation:
        return f"the MLP has no gate with {activation}"
    is_usual = math.isclose(a.scale, a.head_size**-0.5)
    return "" if is_usual or any_scale else "scores are not scaled by the root of the head size"


def unsupported_heads(a: Attention) -> str:
    """Describe an attention that cannot be padded to full heads of its family."""
    if a.is_native:
        return ""
    if reason := _unsupported_attention(a):
        return reason
    if a.rotary_pairs is not None:
        lost = unrotated_pairs(a)
        if lost > int((frequencies(a) == 0).sum()):
            return f"{lost} rotary pairs of a head are no longer rotated"
    return ""


def _unsupported_attention(a: Attention) -> str:
    if a.summed:
        return "heads are summed before the output projection"
    return "" if a.channel is None else "attention has a decoupled rotary channel"


def sliding_window(network: PreTrainedModel) -> int | None:
    """Return the sliding window, which has no effect in contexts of at most this length."""
    window: int | None = getattr(text_config(network), "sliding_window", None)
    return window
