"""Which networks have plain layers: what llama.cpp and stock latent attention have a place for."""

import math

from transformers import PreTrainedModel

from ..layer import Layer
from ..models.architectures import text_config
from ..models.structure import sliced_modules

FAMILIES = ("llama", "mistral", "qwen2")
FIXED_ANGLES = ("default", "linear", "llama3")  # rotary scalings that are a factor per pair


def network_misfit(network: PreTrainedModel) -> str:
    """What of a network has no place in plain layers with a rotary embedding; "" where it fits."""
    if sliced_modules(network):
        return (
            "its residual stream is sliced; export it with --stock where that is possible, and "
            "that folder so"
        )
    scaling = text_config(network).rope_parameters.get("rope_type", "default")
    return "" if scaling in FIXED_ANGLES else f"its rotary positions are scaled by '{scaling}'"


def window_of(network: PreTrainedModel) -> int | None:
    """The sliding window: with a context as long as that, it hides nothing."""
    window: int | None = getattr(text_config(network), "sliding_window", None)
    return window


def layer_misfit(layer: Layer, activation: str = "silu", scaled: bool = False) -> str:
    """What neither llama.cpp nor stock latent attention has a place for in a layer; "" where there
    is nothing. activation: of the MLP's gate, as transformers names it.
    scaled: whether scores may be scaled by any number.
    """
    a, m = layer.attention, layer.mlp
    if a.summed:
        return "heads are summed before the output projection"
    if a.channel is not None:
        return "there is a decoupled rotary channel"
    tables = (a.frequencies, a.turning)
    if any(one is None or bool((one == 0).any()) for one in tables):
        return "not all of a head is rotated"
    if m is None or m.gate is None or m.activation != activation:
        return f"the MLP has no gate with {activation}"
    usual = math.isclose(a.scale, a.head_size**-0.5)
    return "" if usual or scaled else "scores are not scaled by the square root of the head size"
