"""Decoder layers with random weights and their inputs, small enough for brute force in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lrcore.layers.layer import ACROSS, MLP, Attention, Layer, Linear
from lrcore.layers.statistics import OUTPUT_CURVATURES, Accumulator, Moments
from lrcore.models.stream import rotate_states

D, D_F, HEAD, TOKENS = 24, 40, 8, 400


@dataclass(frozen=True)
class Sizes:
    """Sizes of the stream, the MLP's hidden state and a head."""

    d: int = D
    d_f: int = D_F
    head: int = HEAD


USUAL = Sizes()


def frequencies_of(size: int) -> Tensor:
    """Return radians per position of the pairs of a head, [size / 2]."""
    return 100.0 ** -(torch.arange(size // 2, dtype=torch.float64) / (size // 2))


FREQUENCIES = frequencies_of(HEAD)
PARTIAL = FREQUENCIES * (torch.arange(HEAD // 2) < HEAD // 4)
KINDS = [
    # n_q, n_kv, position, bias, gated
    (3, 3, "none", True, False),
    (3, 3, "none", False, False),
    (4, 2, "none", True, True),
    (3, 3, "rotary", False, True),
    (4, 2, "rotary", False, True),
    (4, 2, "rotary", True, True),
]


@dataclass(frozen=True)
class Toy:
    """Layer with its moments, and the samples: x [N, d], heads a [N, n_q * d_h], z [N, d_f].

    mixtures [n_q, N, N]: attention weights of each query head.
    """

    layer: Layer
    moments: Moments
    x: Tensor
    a: Tensor
    z: Tensor
    mixtures: Tensor


def toy(*kind: int | str | bool, seed: int = 0, tokens: int = TOKENS, sizes: Sizes = USUAL) -> Toy:
    """Return a layer with correlated, shifted inputs and random attention weights, so that no
    moment is a multiple of the identity.

    kind: n_q, n_kv, position, whether there are biases, whether the MLP is gated. position
    "partial": rotary, without rotation of the second half of the pairs.
    """
    n_q, n_kv, position, bias, gated = kind
    d, d_f, head = sizes.d, sizes.d_f, sizes.head
    turning = {"rotary": frequencies_of(head), "partial": PARTIAL}
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def linear(out: int, inp: int) -> Linear:
        return Linear(randn(out, inp) / inp**0.5, 0.3 * randn(out) if bias else None)

    attention = Attention(
        q=linear(n_q * head, d),
        k=linear(n_kv * head, d),
        v=linear(n_kv * head, d),
        o=linear(d, n_q * head),
        n_q=n_q,
        n_kv=n_kv,
        head_size=head,
        qk_size=head,
        v_size=head,
        scale=head**-0.5,
        position="none" if position == "none" else "rotary",
        frequencies=turning.get(position),
    )
    mlp = MLP(
        up=linear(d_f, d),
        down=linear(d, d_f),
        gate=linear(d_f, d) if gated else None,
        activation="silu" if gated else "relu",
    )
    x = randn(tokens, d) @ randn(d, d) / d**0.5 + 0.4 * randn(d)
    return watched(Layer(0, attention, mlp), x, g)


def watched(layer: Layer, x: Tensor, g: torch.Generator | None = None) -> Toy:
    """Return the outputs of a layer for x, with random attention weights by g for each query head,
    and all moments.
    """
    g = g or torch.Generator().manual_seed(0)
    attention, mlp = layer.attention, layer.mlp
    n_q, n_kv, tokens = attention.n_q, attention.n_kv, len(x)
    values = apply(attention.v, x).unflatten(-1, (n_kv, -1))
    mixtures = torch.softmax(
        3 * torch.randn(n_q, tokens, tokens, generator=g, dtype=torch.float64), -1
    )
    a = torch.cat([mixtures[i] @ values[:, i // (n_q // n_kv)] for i in range(n_q)], 1)
    up = apply(mlp.up, x)
    z = (
        torch.nn.functional.silu(apply(mlp.gate, x)) * up
        if mlp.gate is not None
        else torch.relu(up)
    )
    weighted = (mixtures @ values.flatten(1)).transpose(0, 1).flatten(1)
    return Toy(layer, moments_of(layer, x, a, z, weighted), x, a, z, mixtures)


def apply(linear: Linear, x: Tensor) -> Tensor:
    """Apply the projection to row activations."""
    y = x @ linear.weight.T
    return y if linear.bias is None else y + linear.bias


def moments_of(
    layer: Layer, x: Tensor, a: Tensor, z: Tensor, weighted: Tensor | None = None
) -> Moments:
    """Return all statistics that a method may use, from plain samples."""
    taps = {"attn_in": x, "mlp_in": x, "attn_out": a, "mlp_hidden": z} | (
        {} if weighted is None else {"weighted_values": weighted}
    )
    attention = layer.attention
    for name in ("q", "k"):
        states = apply(getattr(attention, name), x)
        is_rotary = attention.frequencies is not None
        taps[f"{name}_rotated"] = rotated(states, attention.frequencies) if is_rotary else states
    accumulator = Accumulator(
        (tap, statistic)
        for tap in taps
        for statistic in ("second", "mean", "abs", "square", "sample")
    )
    for tap, values in taps.items():
        accumulator.observe(tap, values)
    accumulator.observe_block(x, x + a[:, :1], x)
    result = accumulator.moments()
    return Moments({**result.values, **slopes(layer)}, result.tokens)


def slopes(layer: Layer) -> dict:
    """Return random statistics of gradients with the right shapes, for options that need them."""
    g, result = torch.Generator().manual_seed(5), {}
    h = torch.Generator().manual_seed(6)
    for name, projection in layer.matrices().items():
        result[name, "fisher"] = torch.rand(
            projection.weight.shape[1], generator=g, dtype=torch.float64
        )
        size = projection.weight.shape[1 - ACROSS[name]]
        d = projection.weight.shape[0]
        for statistic in OUTPUT_CURVATURES:
            root = torch.randn(d, d, generator=h, dtype=torch.float64)
            result[name, statistic] = root @ root.T / d
        result[name, "taylor"] = torch.randn(size, generator=g, dtype=torch.float64)
        if name in ("o", "down"):
            d = projection.weight.shape[0]
            root = torch.randn(d, d, generator=g, dtype=torch.float64)
            result[name, "curvature"] = root @ root.T / d
        for kind in ("param_first", "param_second", "param_mix"):
            result[name, kind] = torch.rand(size, generator=g, dtype=torch.float64)
    return result


def rotated(states: Tensor, frequencies: Tensor = FREQUENCIES) -> Tensor:
    """Apply rotary embeddings at positions 0, 1, 2, ..., [N, heads * d_h]."""
    angle = torch.arange(len(states), dtype=torch.float64).unsqueeze(1) * frequencies
    angle = torch.cat((angle, angle), -1).unsqueeze(0)
    return rotate_states(states.unsqueeze(0), angle.cos(), angle.sin()).squeeze(0)


def relative(
    result: float | Tensor, expected: float | Tensor, scale: float | Tensor | None = None
) -> float:
    """Return |result - expected| relative to expected, or to scale."""
    return float(abs(result - expected) / abs(expected if scale is None else scale))
