"""The model families, one row each: where a decoder layer keeps its projections, and what is applied between them."""

from dataclasses import dataclass
from typing import Literal

from torch import nn


@dataclass(frozen=True)
class Architecture:
    """Names inside a family's decoder layer. Paths are dotted and relative: layers to the model, the rest to one layer."""

    layers: str = "model.layers"
    attention: str = "self_attn"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate: str | None = "mlp.gate_proj"
    position: Literal["none", "rotary"] = "rotary"
    activation: str = "hidden_act"  # the field of the config that names it

    def paths(self) -> dict[str, str]:
        """The projections by name, in the order of the forward pass."""
        named = {"q": self.q, "k": self.k, "v": self.v, "o": self.o, "gate": self.gate, "up": self.up, "down": self.down}
        return {name: path for name, path in named.items() if path is not None}


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(),
    "opt": Architecture(
        layers="model.decoder.layers",
        o="self_attn.out_proj",
        up="fc1",
        down="fc2",
        gate=None,
        position="none",
        activation="activation_function",
    ),
}


def architecture_of(network: nn.Module) -> Architecture:
    """The row of a loaded network."""
    return ARCHITECTURES[network.config.model_type]


def decoder_layers(network: nn.Module) -> nn.ModuleList:
    """The decoder layers of a loaded network, in order."""
    return network.get_submodule(architecture_of(network).layers)
