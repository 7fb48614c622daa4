"""Loading of a transformers model and tokenizer that are in memory."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..layers.modules.install import install
from ..system.as_json import json_text
from ..system.errors import InputError
from ..system.files import cache_folder
from ..system.path_access import expanded
from .config import error_line, family_config, without_initialization
from .load import LoadedModel, empty_network, move_to, resolve_device, resolve_dtype
from .weights import check_finite


def load_in_memory(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dtype: str | None = None,
    device: str = "auto",
) -> LoadedModel:
    """Return a `LoadedModel` of a supported network in memory, dense or from an export.

    Its modules are new, around the same tensors if dtype and device match, so the network is not
    changed, and changes of its weights in place are visible. dtype None and device "auto" are those
    of the network. The fingerprint is computed from config and tensors, and differs from the
    fingerprint of the network's files.

    Raises InputError for an unsupported family, for modules or tensors that do not match the
    family, and for weights with NaN or infinity.
    """
    source, tensors = network.config, network.state_dict()
    name = source._name_or_path or type(network).__name__
    if any(tensor.is_meta for tensor in tensors.values()):
        raise InputError(
            f"Weights of '{name}' are offloaded. Load it without device_map, or give its folder."
        )
    config = family_config(source, name)
    requested = None if dtype is None else resolve_dtype(dtype)
    stored = requested if isinstance(requested, torch.dtype) else network.dtype
    shell = _around(tensors, config, stored, name, getattr(source, "lowrank", None))
    check_finite(shell.state_dict().items(), Path(name), shell.dtype)
    move_to(shell, network.device if device == "auto" else resolve_device(device))
    key, folder = _fingerprint(config, tensors), expanded(name)
    if not folder.is_dir():
        folder = cache_folder() / "in-memory" / key  # does not exist, since there are no files
    return LoadedModel(name, shell, tokenizer, key, folder)


def empty_compressed(
    config: PretrainedConfig, dtype: torch.dtype, shapes: dict[str, Any]
) -> PreTrainedModel:
    """Build the modules of a compressed model without weights. shapes: structure of its layers."""
    network = empty_network(config, dtype)
    with torch.device("meta"), without_initialization():
        install(network, shapes)
    return network


def _around(
    tensors: dict[str, Tensor],
    config: Any,
    dtype: torch.dtype,
    name: str,
    lowrank: dict[str, Any] | None,
) -> PreTrainedModel:
    """Build the modules of a config with these tensors [...] as their weights."""
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
            f"The modules of '{name}' do not match its config ({error_line(error)}). Merge "
            "adapters and load it without quantization first."
        ) from error
    shell.tie_weights()
    return shell


def _fingerprint(config: Any, tensors: dict[str, Tensor]) -> str:
    """Return the sha256 (hex) of a config and of tensors [...] by name.

    The version of transformers is ignored.
    """
    ignored = ("_", "transformers_version")
    values = {n: value for n, value in config.to_dict().items() if not n.startswith(ignored)}
    digest = hashlib.sha256(json_text(values, sort_keys=True, default=str).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
