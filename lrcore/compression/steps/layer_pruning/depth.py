"""Networks with fewer decoder layers, of the same family, with a matching config."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel

from ....models.architectures import architecture_of, decoder_layers, text_config
from ....models.config import auto_class, without_initialization
from ....models.layers import clone
from ....models.partial import identity_layer, replaced_layers
from ....models.per_layer import sizes_by_layer
from ....system.errors import InputError, with_article

# Fields of configs with a value per layer
PER_LAYER = (
    "layer_types",
    "no_rope_layers",
    "attention_layers",
    "layer_rope_theta",
    "mlp_layer_types",
)
LAYER_NUMBERS = ("moe_layers", "attn_layer_indices")  # fields that list layers by number
# Numbers of layers before those with experts
DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers")
DEPTH_SCALE = "scale_depth"  # MiniCPM divides it by the root of the number of layers
CACHE_INDEX = {"layer_idx", "layer_id"}  # attributes of modules with the index in the KV cache


@contextmanager
def skip_layers(network: PreTrainedModel, skipped: Collection[int]) -> Iterator[None]:
    """Skip decoder layers inside the block; the layers keep their positions."""
    with replaced_layers(
        network,
        [
            identity_layer(network, i) if i in skipped else layer
            for i, layer in enumerate(decoder_layers(network))
        ],
    ):
        yield


def without_layers(network: PreTrainedModel, dropped: Collection[int]) -> PreTrainedModel:
    """Return a second network over the same tensors without some decoder layers.

    The remaining layers are renumbered, in modules and config. Raises InputError for a family whose
    config cannot describe the result, for example if the type of a layer follows from the position.
    """
    row = architecture_of(network)
    retained = [i for i in range(len(decoder_layers(network))) if i not in dropped]
    if row.mixer and not any(row.of_layer(decoder_layers(network)[i]).has_heads for i in retained):
        raise InputError(
            "No layer with attention would remain, without which transformers cannot run "
            f"{with_article(network.config.model_type)} model. Keep a layer with attention."
        )
    short = clone(network)
    layers = decoder_layers(short)
    parent, _, name = row.layers.rpartition(".")
    setattr(short.get_submodule(parent), name, nn.ModuleList(layers[i] for i in retained))
    for index, layer in enumerate(decoder_layers(short)):
        _set_cache_index(layer, index)
    config = text_config(short)
    _select_per_layer_fields(config, retained, len(layers))
    _set_layers(config, retained)
    if _shapes(short) != _described(short.config, architecture_of(short).kernel):
        raise InputError(
            f"The layers of {with_article(config.model_type)} model have different types by "
            "position, and no config describes the model without layers "
            f"{', '.join(map(str, sorted(dropped)))}. Use a method that makes all layers smaller."
        )
    return short


def _set_cache_index(layer: nn.Module, index: int) -> None:
    """Set the index of a layer in the KV cache, in all modules that store it."""
    for module in layer.modules():
        for field in CACHE_INDEX & vars(module).keys():
            setattr(module, field, index)


def _select_per_layer_fields(config: Any, retained: list[int], total: int) -> None:
    """Reduce the fields of a config that depend on single layers to the retained layers."""
    for field in PER_LAYER:
        stored = getattr(type(config), config.attribute_map.get(field, field), None)
        if isinstance(stored, property):  # derived from other fields
            continue
        if len(getattr(config, field, None) or ()) == total:
            setattr(config, field, [getattr(config, field)[i] for i in retained])
    if hasattr(config, "attention_types"):  # GPT-Neo derives attention_layers from it
        config.attention_types = [[[kind], 1] for kind in config.attention_layers]
    for field in DENSE_FIRST:
        if (dense := getattr(config, field, None)) is not None:
            setattr(config, field, sum(i < dense for i in retained))
    for field in LAYER_NUMBERS:
        if (numbers := getattr(config, field, None)) is not None:
            setattr(config, field, [retained.index(i) for i in numbers if i in retained])


def _set_layers(config: Any, retained: list[int]) -> None:
    """Set the number of layers in a config, what depends on it, and sizes of layers that differ."""
    sizes = sizes_by_layer(config)
    if (scale := getattr(config, DEPTH_SCALE, None)) is not None:
        setattr(config, DEPTH_SCALE, scale * math.sqrt(len(retained) / config.num_hidden_layers))
    config.per_layer_config = None  # it has more entries than the new number of layers allows
    config.num_hidden_layers = len(retained)
    if sizes is not None:
        config.per_layer_config = {
            index: sizes[i] for index, i in enumerate(retained) if i in sizes
        }


def _shapes(network: PreTrainedModel) -> dict[str, Any]:
    kinds = {
        i: getattr(layer, "attention_type", None) for i, layer in enumerate(decoder_layers(network))
    }
    return {name: tensor.shape for name, tensor in network.state_dict().items()} | kinds


def _described(config: Any, kernel: str) -> dict[str, Any] | None:
    """Return the shapes and types of layers of the model that a config describes, or None.

    The config is written and read back first. None if it is invalid.
    """
    try:
        read = type(config).from_dict(config.to_dict())
        with torch.device("meta"), without_initialization():
            return _shapes(auto_class(read).from_config(read, attn_implementation=kernel))
    except (StrictDataclassError, ValueError, IndexError, KeyError):
        return None
