"""An empty network over the files of its weights: decoder layers wait there, the rest is pages
of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..tensor_files import StoredTensor
from .architectures import architecture_of, decoder_layers
from .offload import Offloaded, named_tensors, offload, put_tensor


def wait_on_disk(
    network: nn.Module, stored: Mapping[str, StoredTensor], device: torch.device, folder: Path
) -> dict[str, Any]:
    """Give every tensor of the network its place in the files; layers are not read.

    Embeddings, norms and head are pages of the file, or in memory where they must be converted or
    moved. What layers exchange later goes to `folder`. Returns the missing and mismatched keys, as
    transformers names them; then the network is not to be used.
    """
    wanted = named_tensors(network)
    places = _places(network, wanted, stored)
    missing = [
        name for name in wanted if name not in places and name not in network.all_tied_weights_keys
    ]
    mismatched = [
        (name, place.shape, tuple(wanted[name].shape))
        for name, place in places.items()
        if place.shape != tuple(wanted[name].shape)
    ]
    if not missing and not mismatched:
        _attach(network, places, device, folder)
    return {"missing_keys": missing, "mismatched_keys": mismatched}


def _places(
    network: nn.Module, wanted: Mapping[str, torch.Tensor], stored: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """By the name in the network, or one that files have instead: a bare body lacks its leading
    name, and GPT-NeoX heads had another.
    """
    body = f"{network.base_model_prefix}."
    names = {
        name: (name, name.removeprefix(body), name.replace("lm_head.", "embed_out."))
        for name in wanted
    }
    found = {
        name: next((stored[other] for other in others if other in stored), None)
        for name, others in names.items()
    }
    return {name: place for name, place in found.items() if place is not None}


def _attach(
    network: nn.Module, places: Mapping[str, StoredTensor], device: torch.device, folder: Path
) -> None:
    prefix = f"{architecture_of(network).layers}."
    for index, layer in enumerate(decoder_layers(network)):
        start = f"{prefix}{index}."
        offload(
            layer,
            Offloaded(
                {
                    n.removeprefix(start): place
                    for n, place in places.items()
                    if n.startswith(start)
                },
                folder,
                device,
            ),
        )
    for name, place in places.items():
        if not name.startswith(prefix):
            put_tensor(network, name, place.map() if device.type == "cpu" else place.read(device))
    for (
        module
    ) in network.modules():  # what no file holds, such as the frequencies of rotary positions
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type != "meta":
                module._buffers[name] = buffer.to(device)
    network.tie_weights()
