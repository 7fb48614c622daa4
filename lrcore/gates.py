"""How a gate acts on the hidden state of an MLP, by name: transformers' activations, and more."""

import torch
from torch import Tensor

CLAMPED = "clamped_swiglu"  # gpt-oss; followed by alpha and limit: "clamped_swiglu:1.702:7.0"


def clamps_of(activation: str) -> tuple[float, float] | None:
    """alpha and limit of a clamped SwiGLU; None for an activation of transformers."""
    name, *numbers = activation.split(":")
    if name != CLAMPED:
        return None
    alpha, limit = map(float, numbers)
    return alpha, limit


def clamped_swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """`(u + 1) g sigmoid(alpha g)`, g at most `limit` and u within it on both sides. [n, d_f]."""
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)
