"""Parameters of a compressed network that healing trains, and the optional rotary channel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel

from ....layers.layer import Attention, LowRank, RotaryChannel
from ....layers.modules.latent import LatentAttention
from ....layers.modules.projections import LowRankLinear
from ....models.architectures import decoder_layers
from ....models.layers import changed_projections, read_layer, write_layer
from ....recipes.history import LayersDropped, Step
from ....system.errors import InputError


def add_rotary_channel(network: PreTrainedModel, size: int, seed: int = 0) -> None:
    """Give each layer with cached latents of keys a decoupled rotary channel.

    size: numbers per head. No logit changes yet: W_K^R [size, r_K] is zero. W_Q^R [n_q size, d] is
    normal with the standard deviation of W_Q, from a separate generator (CARE, section 3.5; the
    paper does not specify the initial values). Raises InputError if no layer can have a channel, or
    if one exists.
    """
    generator, layers = (
        torch.Generator().manual_seed(seed),
        [read_layer(network, i) for i in range(len(decoder_layers(network)))],
    )
    if any(layer.attention.channel is not None for layer in layers):
        raise InputError(
            "The model already has a rotary channel, which is trained. Leave rotary_channel at 0."
        )
    eligible = [layer for layer in layers if _can_have_channel(layer.attention)]
    if not eligible:
        raise InputError(
            "No layer of this model can have a rotary channel: it needs cached latents of keys and "
            "rotary positions, as from method care on a rotary model. Leave rotary_channel at 0."
        )
    widest = min(_rotated_width(layer.attention) for layer in eligible)
    if size > widest:
        raise InputError(
            f"rotary_channel = {size} is wider than the {widest} rotated numbers of a head. Enter "
            f"at most {widest}."
        )
    for layer in eligible:
        a = layer.attention
        assert isinstance(a.k, LowRank)  # _can_have_channel requires it
        weight = a.q.weight
        shape = (a.n_q * size, weight.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=torch.float32)
        q = noise.to(weight) * weight.std()
        write_layer(
            network,
            replace(
                layer,
                attention=replace(a, channel=RotaryChannel(q, weight.new_zeros(size, a.k.rank))),
            ),
        )


def _can_have_channel(a: Attention) -> bool:
    return a.cached_latent("k") is not None and a.position == "rotary"


def _rotated_width(a: Attention) -> int:
    """Return how many numbers of a head rotary positions rotate."""
    return a.head_size if a.frequencies is None else 2 * int((a.frequencies > 0).sum())


@dataclass(frozen=True)
class DenseReference:
    """The dense network, and the layers of it that a network with fewer layers has, in order."""

    network: PreTrainedModel
    layers: Sequence[int]


def remaining_layers(history: Sequence[Step], total: int) -> list[int]:
    """Return which of `total` layers no step of a history has dropped, counted from 0."""
    remaining = list(range(total))
    for step in history:
        if isinstance(step, LayersDropped):
            remaining = [
                original for index, original in enumerate(remaining) if index not in step.gone
            ]
    return remaining


def trainable_parameters(
    network: PreTrainedModel, dense: DenseReference, train: str
) -> list[nn.Parameter]:
    """Return the parameters to train, without duplicates.

    dense: the reference by which "factors" determines what compression changed.

    "latents": the factors of keys and values that are cached as latents, without biases. "factors":
    the projections that differ from the dense projections, with biases. Both include the rotary
    channel. "all": all parameters. Raises InputError if there are no such parameters.
    """
    modules = [network] if train == "all" else _modules_to_train(network, dense, train)
    named = [
        (name, p)
        for module in modules
        for name, p in module.named_parameters()
        if p.is_floating_point()
    ]
    parameters = {id(p): p for name, p in named if train != "latents" or name != "bias"}
    if not parameters:
        reasons = {
            "latents": "no latents: no key or value has factors of plain numbers",
            "factors": "no number that compression changed",
        }
        raise InputError(
            f"Nothing to train: the model has {reasons[train]}. Choose another part to train."
        )
    return list(parameters.values())


def _modules_to_train(
    network: PreTrainedModel, dense: DenseReference, train: str
) -> list[nn.Module]:
    """Return the modules of all layers that "latents" or "factors" trains."""
    modules: list[nn.Module] = []
    for index, layer in enumerate(decoder_layers(network)):
        attentions = [m for m in layer.modules() if isinstance(m, LatentAttention)]
        if train == "latents":
            modules += _latent_factors(attentions)
        else:
            dense_layer = read_layer(dense.network, dense.layers[index])
            modules += changed_projections(network, dense_layer, index).values()
        modules += [m for a in attentions for m in (a.q_channel, a.k_channel) if m is not None]
    return modules


def _latent_factors(attentions: Sequence[LatentAttention]) -> list[nn.Module]:
    """Return the factors of keys and values that are cached as latents."""
    pairs = [m for a in attentions for m in (a.k_proj, a.v_proj) if isinstance(m, LowRankLinear)]
    return [factor for pair in pairs for factor in (pair.down, pair.up)]


def make_trainable(
    network: PreTrainedModel, parameters: Sequence[nn.Parameter]
) -> list[nn.Parameter]:
    """Replace parameters by trainable copies, since other networks may share them.

    A parameter that is used several times gets a single copy. Returns the copies.
    """
    copies = {id(p): nn.Parameter(p.detach().clone()) for p in parameters}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in copies:
                module._parameters[name] = copies[id(parameter)]
    return list(copies.values())
