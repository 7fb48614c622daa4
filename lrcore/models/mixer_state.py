"""The state of linear-attention, Mamba and convolution layers in the cache of a network.

A state replaces keys and values. Its size is the same for any number of tokens.
"""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ..layers.modules.projections import LowRankLinear, StoredLinear
from .architectures import decoder_layers, text_config
from .config import quiet


def state_tensors(cache_layer: Any) -> list[Tensor]:
    """Return the states of a layer of a cache; [] if it holds keys and values only."""
    states = (getattr(cache_layer, name, None) for name in ("conv_states", "recurrent_states"))
    return [state for group in states if group for state in group.values() if state is not None]


def state_bytes(network: PreTrainedModel) -> int:
    """Return the bytes per sequence of the states of all layers.

    transformers decides about shape and dtype of a state, so a mixer of each class reads a token on
    the device "meta", which has no numbers, and the cache that it fills is counted. A mixer is a
    module that is made of a config and the index of its layer, and that has a convolution.
    States of other modules are not counted.
    """
    sizes: dict[type[nn.Module], int] = {}
    total = 0
    for layer in decoder_layers(network):
        for module in layer.modules():
            kind = type(module)
            if kind not in sizes:
                sizes[kind] = _mixer_bytes(network, module) if _is_mixer(module) else 0
            total += sizes[kind]
    return total


def _is_mixer(module: nn.Module) -> bool:
    if not hasattr(module, "conv_kernel_size"):
        return False
    return [*inspect.signature(type(module)).parameters][:2] == ["config", "layer_idx"]


def _mixer_bytes(network: PreTrainedModel, module: Any) -> int:
    config = text_config(network)
    cache = DynamicCache(config=config)
    token = torch.empty(1, 1, config.hidden_size, dtype=network.dtype, device="meta")
    with quiet(), torch.inference_mode():
        _without_numbers(module, network.dtype)(token, cache)
    return sum(state.nbytes for state in state_tensors(cache.layers[module.layer_idx]))


def _without_numbers(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy on the device "meta", with dense matrices in place of compressed ones."""
    copies: dict[int, Any] = {
        id(tensor): nn.Parameter(tensor.to("meta"), requires_grad=False)
        if isinstance(tensor, nn.Parameter)
        else tensor.to("meta")
        for tensor in (*module.parameters(), *module.buffers())
    }
    for part in module.modules():
        if isinstance(part, LowRankLinear | StoredLinear):
            sizes = part.in_features, part.out_features
            copies[id(part)] = nn.Linear(*sizes, bias=False, device="meta", dtype=dtype)
    return copy.deepcopy(module, copies)
