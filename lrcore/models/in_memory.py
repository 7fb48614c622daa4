"""A transformers model and its tokenizer, as they are in memory, become a model of this project."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..as_json import json_text
from ..errors import InputError
from ..files import cache_folder
from ..modules.install import install
from ..places import expanded
from .config import family_config, one_line, unfilled
from .load import LoadedModel, empty_network, move_to, resolve_device, resolve_dtype
from .weights import check_finite


def load_in_memory(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: str | None = None,
    device: str = "auto",
) -> LoadedModel:
    """A causal language model of a supported family, or a compressed one that an export gave.

    Its modules are made anew, around the same tensors where dtype and device are the same: the
    network given is not changed, and changes of its weights in place are seen here.
    dtype None: the network's. device "auto": the network's. The fingerprint is of config and
    tensors, and so another than that of the files which the network came from.

    Raises InputError for a family that is not supported, for modules or tensors that are not those
    of the family, and for weights with NaN or infinity.
    """
    own, tensors = network.config, network.state_dict()
    name = own._name_or_path or type(network).__name__
    if any(tensor.is_meta for tensor in tensors.values()):
        raise InputError(
            f"Weights of '{name}' are offloaded. Load it without device_map, or give its folder."
        )
    config = family_config(own, name)
    named = None if dtype is None else resolve_dtype(dtype)
    stored = named if isinstance(named, torch.dtype) else network.dtype
    shell = _around(tensors, config, stored, name, getattr(own, "lowrank", None))
    check_finite(shell.state_dict().items(), Path(name), shell.dtype)
    move_to(shell, network.device if device == "auto" else resolve_device(device))
    key, folder = _fingerprint(config, tensors), expanded(name)
    if not folder.is_dir():
        folder = cache_folder() / "in-memory" / key  # which does not exist: there are no files
    return LoadedModel(name, shell, tokenizer, key, folder)


def empty_compressed(
    config: PretrainedConfig, dtype: torch.dtype, shapes: dict[str, Any]
) -> PreTrainedModel:
    """The modules of a compressed model without weights; shapes: of its layers, as they are
    described.
    """
    network = empty_network(config, dtype)
    with torch.device("meta"), unfilled():
        install(network, shapes)
    return network


def _around(
    tensors: dict[str, Tensor],
    config: Any,
    dtype: torch.dtype,
    name: str,
    lowrank: dict[str, Any] | None,
) -> PreTrainedModel:
    """The modules of a config with these tensors [...] as their weights."""
    try:
        shell = (
            empty_compressed(config, dtype, lowrank["layers"])
            if lowrank
            else empty_network(config, dtype)
        )
        cast = {
            path: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for path, tensor in tensors.items()
        }
        shell.load_state_dict(cast, strict=True, assign=True)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"The modules of '{name}' are not those that its config describes "
            f"({one_line(error)}). Merge adapters and load it without quantisation first."
        ) from error
    shell.tie_weights()
    return shell


def _fingerprint(config: Any, tensors: dict[str, Tensor]) -> str:
    """sha256 (hex) of a config and of tensors [...] by name; of transformers' version only what it
    makes of them.
    """
    left_out = ("_", "transformers_version")
    values = {n: value for n, value in config.to_dict().items() if not n.startswith(left_out)}
    whole = hashlib.sha256(json_text(values, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        whole.update(flat.view(torch.uint8).numpy().data)
    return whole.hexdigest()
