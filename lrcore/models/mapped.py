"""An empty network over its weight files: decoder layers offloaded, the rest memory-mapped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..tensor_files import StoredTensor
from .architectures import architecture_of, decoder_layers
from .offload import Offloaded, named_tensors, offload, put_tensor


def map_weights(
    network: PreTrainedModel, stored: Mapping[str, StoredTensor], device: torch.device, folder: Path
) -> dict[str, Any]:
    """Connect every tensor of an empty network to its place in the files; layers are not read.

    Embeddings, norms and head are memory-mapped, or in memory where they must be converted or
    moved to a device. Tensors that a layer gets later are offloaded to `folder`. Returns the
    missing_keys and mismatched_keys of transformers; where there are any, nothing was connected.
    """
    needed = named_tensors(network)
    places = _places(network, needed, stored)
    missing = [
        name for name in needed if name not in places and name not in network.all_tied_weights_keys
    ]
    mismatched = [
        (name, place.shape, tuple(needed[name].shape))
        for name, place in places.items()
        if place.shape != tuple(needed[name].shape)
    ]
    if not missing and not mismatched:
        _attach(network, places, device, folder)
    return {"missing_keys": missing, "mismatched_keys": mismatched}


def _places(
    network: PreTrainedModel, needed: Mapping[str, torch.Tensor], stored: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """The places by the network's names.

    Files may name a tensor otherwise: those of a base model lack its prefix, and GPT-NeoX had
    another name for its head.
    """
    prefix = f"{network.base_model_prefix}."
    names = {
        name: (name, name.removeprefix(prefix), name.replace("lm_head.", "embed_out."))
        for name in needed
    }
    places = {
        name: next((stored[other] for other in others if other in stored), None)
        for name, others in names.items()
    }
    return {name: place for name, place in places.items() if place is not None}


def _attach(
    network: PreTrainedModel, places: Mapping[str, StoredTensor], device: torch.device, folder: Path
) -> None:
    prefix = f"{architecture_of(network).layers}."
    for index, layer in enumerate(decoder_layers(network)):
        start = f"{prefix}{index}."
        own = {n.removeprefix(start): place for n, place in places.items() if n.startswith(start)}
        offload(layer, Offloaded(own, folder, device))
    for name, place in places.items():
        if not name.startswith(prefix):
            put_tensor(network, name, place.map() if device.type == "cpu" else place.read(device))
    for module in network.modules():
        # buffers that no file holds, such as the frequencies of rotary embeddings
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type != "meta":
                module._buffers[name] = buffer.to(device)
    network.tie_weights()
