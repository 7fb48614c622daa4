"""A network with fewer decoder layers: one of its own family, whose config says so."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedModel

from ...errors import InputError, with_article
from ...models.architectures import architecture_of, decoder_layers, text_config
from ...models.config import auto_class, unfilled
from ...models.layers import clone
from ...models.partial import exchanged, identity_layer
from ...models.per_layer import sizes_by_layer

PER_LAYER = (
    "layer_types",
    "no_rope_layers",
    "attention_layers",
)  # fields of configs that list one value for every layer
BY_NUMBER = ("moe_layers",)  # fields that list layers by number
DENSE_FIRST = "first_k_dense_replace"  # layers before those of experts (DeepSeek)
PLACE = {"layer_idx", "layer_id"}  # what modules call their place in the KV cache


@contextmanager
def skipping(network: PreTrainedModel, gone: Collection[int]) -> Iterator[None]:
    """Inside, the network passes its hidden states by the decoder layers named; they keep their
    places.
    """
    with exchanged(
        network,
        [
            identity_layer(network) if i in gone else layer
            for i, layer in enumerate(decoder_layers(network))
        ],
    ):
        yield


def without_layers(network: PreTrainedModel, gone: Collection[int]) -> PreTrainedModel:
    """A second network over the same tensors that lacks the decoder layers named; the others move
    up, in modules and config.

    Raises InputError for a family whose config cannot describe what is left, such as one where the
    kind of a layer follows from its place.
    """
    kept = [i for i in range(len(decoder_layers(network))) if i not in gone]
    short = clone(network)
    layers = decoder_layers(short)
    parent, _, name = architecture_of(short).layers.rpartition(".")
    setattr(short.get_submodule(parent), name, nn.ModuleList(layers[i] for i in kept))
    for index, layer in enumerate(decoder_layers(short)):
        for module in layer.modules():
            for field in PLACE & vars(module).keys():
                setattr(module, field, index)
    config = text_config(short)
    for field in PER_LAYER:
        if len(getattr(config, field, None) or ()) == len(layers):
            setattr(config, field, [getattr(config, field)[i] for i in kept])
    if hasattr(config, "attention_types"):  # GPT-Neo derives attention_layers from it
        config.attention_types = [[[kind], 1] for kind in config.attention_layers]
    if (dense := getattr(config, DENSE_FIRST, None)) is not None:
        setattr(config, DENSE_FIRST, sum(i < dense for i in kept))
    for field in BY_NUMBER:
        if (places := getattr(config, field, None)) is not None:
            setattr(config, field, [kept.index(i) for i in places if i in kept])
    _count(config, kept)
    if _shapes(short) != _described(short.config, architecture_of(short).kernel):
        raise InputError(
            f"The layers of {with_article(config.model_type)} model differ in kind by their place, "
            "and no config describes it without layers "
            f"{', '.join(map(str, sorted(gone)))}. Use a method that makes all layers smaller."
        )
    return short


def _count(config: Any, kept: list[int]) -> None:
    """Say in a config how many layers there are, and what some of them have for themselves."""
    sizes = sizes_by_layer(config)
    config.per_layer_config = None  # whose layers would be too many
    config.num_hidden_layers = len(kept)
    if sizes is not None:
        config.per_layer_config = {place: sizes[i] for place, i in enumerate(kept) if i in sizes}


def _shapes(network: PreTrainedModel) -> dict[str, Any]:
    kinds = {
        i: getattr(layer, "attention_type", None) for i, layer in enumerate(decoder_layers(network))
    }
    return {name: tensor.shape for name, tensor in network.state_dict().items()} | kinds


def _described(config: Any, kernel: str) -> dict[str, Any] | None:
    """The shapes and kinds of layers of the model that the config describes once it is read
    again; None where it cannot be.
    """
    try:
        read = type(config).from_dict(config.to_dict())
        with torch.device("meta"), unfilled():
            return _shapes(auto_class(read).from_config(read, attn_implementation=kernel))
    except (StrictDataclassError, ValueError, IndexError, KeyError):
        return None
