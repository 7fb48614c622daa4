"""What of a compressed network is trained, and the rotary channel that training may add."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel

from ...errors import InputError
from ...history import Shortened, Step
from ...layer import Attention, LowRank, RotaryChannel
from ...models.architectures import decoder_layers
from ...models.layers import changed_projections, read_layer, write_layer
from ...modules.latent import LatentAttention
from ...modules.projections import LowRankLinear


def add_channel(network: PreTrainedModel, size: int, seed: int = 0) -> None:
    """Give every layer whose keys are cached latents a decoupled rotary channel of `size` numbers
    per head. No logit changes yet.

    W_K^R [size, r_K] is zero; W_Q^R [n_q size, d] is normal with the standard deviation of W_Q, by
    a generator of its own (CARE, section 3.5; the paper names no start). Raises InputError where no
    layer can
    take one, or one is there already.
    """
    generator, layers = (
        torch.Generator().manual_seed(seed),
        [read_layer(network, i) for i in range(len(decoder_layers(network)))],
    )
    if any(layer.attention.channel is not None for layer in layers):
        raise InputError(
            "The model has a rotary channel already. Leave rotary_channel at 0: what is there is "
            "trained."
        )
    able = [layer for layer in layers if _can_have_channel(layer.attention)]
    if not able:
        raise InputError(
            "No layer of this model can take a rotary channel: it reads cached latents of keys "
            "with rotary positions, which method care "
            "makes of a rotary model. Leave rotary_channel at 0."
        )
    widest = min(_turning(layer.attention) for layer in able)
    if size > widest:
        raise InputError(
            f"rotary_channel = {size} is wider than the {widest} numbers of a head that turn. "
            f"Give at most {widest}."
        )
    for layer in able:
        a = layer.attention
        assert isinstance(a.k, LowRank)  # as _can_have_channel says
        weight = a.q.weight
        shape = (a.n_q * size, weight.shape[1])
        drawn = torch.randn(shape, generator=generator, dtype=torch.float32)
        q = drawn.to(weight) * weight.std()
        write_layer(
            network,
            replace(
                layer,
                attention=replace(a, channel=RotaryChannel(q, weight.new_zeros(size, a.k.rank))),
            ),
        )


def _can_have_channel(a: Attention) -> bool:
    return a.cached_latent("k") is not None and a.position == "rotary"


def _turning(a: Attention) -> int:
    """Numbers of a head that rotary positions turn."""
    return a.head_size if a.frequencies is None else 2 * int((a.frequencies > 0).sum())


@dataclass(frozen=True)
class Dense:
    """The dense network, and which of its layers a network of fewer ones has, in their order."""

    network: PreTrainedModel
    left: Sequence[int]


def layers_left(history: Sequence[Step], total: int) -> list[int]:
    """Which of `total` layers no step of a history has dropped, counted from 0."""
    left = list(range(total))
    for step in history:
        if isinstance(step, Shortened):
            left = [place for now, place in enumerate(left) if now not in step.gone]
    return left


def trainable(network: PreTrainedModel, dense: Dense, train: str) -> list[nn.Parameter]:
    """The parameters to be trained, each once.

    dense: by which "factors" tells what compression changed.

    "latents": the factors of keys and values that are cached as latents, without biases. "factors":
    the projections whose numbers differ from the dense ones, with their biases. Both with the
    rotary channel, if there is one. "all": all parameters.
    Raises InputError where there is nothing of the kind.
    """
    modules: list[nn.Module] = [network] if train == "all" else []
    for index in range(len(decoder_layers(network)) if train != "all" else 0):
        attentions = [
            m for m in decoder_layers(network)[index].modules() if isinstance(m, LatentAttention)
        ]
        channels: list[nn.Module] = [
            m for a in attentions for m in (a.q_channel, a.k_channel) if m is not None
        ]
        if train == "latents":
            latents = [
                m for a in attentions for m in (a.k_proj, a.v_proj) if isinstance(m, LowRankLinear)
            ]
            modules += [part for m in latents for part in (m.down, m.up)] + channels
        else:
            before = read_layer(dense.network, dense.left[index])
            modules += [*changed_projections(network, before, index).values(), *channels]
    named = [
        (name, p)
        for module in modules
        for name, p in module.named_parameters()
        if p.is_floating_point()
    ]
    parameters = {id(p): p for name, p in named if train != "latents" or name != "bias"}
    if not parameters:
        what = {
            "latents": "no latents: no key or value is factored in numbers",
            "factors": "no number that compression changed",
        }
        raise InputError(
            f"There is nothing to train: the model has {what[train]}. Choose another part to train."
        )
    return list(parameters.values())


def set_free(network: PreTrainedModel, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Put copies that can be trained in the places of these parameters, which other networks may
    share; what was one stays one.
    """
    own = {id(p): nn.Parameter(p.detach().clone()) for p in parameters}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in own:
                module._parameters[name] = own[id(parameter)]
    return list(own.values())
