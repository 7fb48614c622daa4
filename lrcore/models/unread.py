"""Tensors in the files of a model that its network does not read.

transformers ignores them, although the network then computes another function than the model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from ..system.errors import InputError, with_article
from ..system.tensor_files import StoredTensor
from .architectures import architecture_of, decoder_layers, text_config

# Tensors that older versions of transformers and other libraries store, and that are computed now
_COMPUTED = re.compile(
    r"(^|\.)(inv_freq|cos_cached|sin_cached|masked_bias|position_ids|_extra_state|rope\.freqs)$"
)
_NAMED = 4  # names in a message or a note
_CAUSES = {  # pattern of names, and the cause and remedy in an error message
    re.compile(r"lora_|\.base_layer\."): (
        "It is a part of an adapter: merge the adapter with peft (merge_and_unload) and save the "
        "model"
    ),
    re.compile(r"scale|zero|qweight|packed|absmax|SCB$"): (
        "The weights are quantized, but not as quantization_config in config.json describes: load "
        "the unquantized model"
    ),
}
_OTHER_MODEL = "Config and weights belong to different models: copy config.json of the model again"


@dataclass
class _Unread:
    """Names of unread tensors by kind.

    needed: of modules that the network has. beyond: of layers that the config does not declare.
    extra: of declared layers for multi-token prediction. unrelated: of other modules.
    """

    needed: list[str]
    beyond: list[str]
    extra: list[str]
    unrelated: list[str]


def ignored_names(network: PreTrainedModel, names: Iterable[str]) -> set[str]:
    """Return the names in files that transformers ignores for the family without a report."""
    patterns = [re.compile(p) for p in network._keys_to_ignore_on_load_unexpected or ()]
    read = network.state_dict().keys()
    return {name for name in names if name not in read and any(p.search(name) for p in patterns)}


def cause_of(names: Iterable[str], default: str) -> str:
    """Return the probable cause of unread tensors and its remedy."""
    causes = (
        cause for name in sorted(names) for kind, cause in _CAUSES.items() if kind.search(name)
    )
    return next(causes, default)


def zero_biases(names: Iterable[str], stored: Mapping[str, StoredTensor]) -> set[str]:
    """Return the names of biases of zeros, which some programs store for all matrices."""
    biases = (name for name in names if name.endswith(".bias") and name in stored)
    return {name for name in biases if not stored[name].load().any()}


def unread_note(
    network: PreTrainedModel, unread: Iterable[str], folder: Path, extra_layers: int = 0
) -> str:
    """Return a note that names the tensors which the network lacks, or "" without any.

    Computed tensors, such as inverse frequencies, are not named. extra_layers: number of declared
    layers for multi-token prediction, which follow the decoder layers. Raises InputError for
    tensors of the network's modules and for layers that are not declared.
    """
    names = _by_kind(network, unread, extra_layers)
    family, layers = text_config(network).model_type, len(decoder_layers(network))
    if names.beyond:
        declared = f" and {extra_layers} for multi-token prediction" if extra_layers else ""
        raise InputError(
            f"'{folder}' holds '{names.beyond[0]}', but config.json calls for {layers} "
            f"layers{declared}. Config and weights belong to different models."
        )
    if names.needed:
        listed = _listed([f"'{name}'" for name in names.needed])
        raise InputError(
            f"'{folder}' holds tensors that {with_article(family)} with this config.json does not "
            f"read: {listed}. {cause_of(names.needed, _OTHER_MODEL)}."
        )
    notes = []
    if names.extra:
        indices = sorted({_layer_of(network, _path(network, name)) or 0 for name in names.extra})
        listed = ", ".join(map(str, indices))
        notes.append(f"Layers for multi-token prediction are left out: {listed}")
    if names.unrelated:
        notes.append(f"Tensors that no module reads are left out: {_grouped(network, names)}")
    return ". ".join(notes)


def _by_kind(network: PreTrainedModel, unread: Iterable[str], extra_layers: int) -> _Unread:
    buffers = {name for name, _ in network.named_buffers()}
    layers = len(decoder_layers(network))
    ignored = ignored_names(network, unread := set(unread))
    names = _Unread([], [], [], [])
    for name in sorted(unread):
        path = _path(network, name)
        index = _layer_of(network, path)
        if _COMPUTED.search(path) or path in buffers:
            continue
        if index is not None and index >= layers:
            (names.extra if index < layers + extra_layers else names.beyond).append(name)
        elif _is_of_module(network, path):
            names.needed += [] if name in ignored else [name]
        else:
            names.unrelated.append(name)
    return names


def _path(network: PreTrainedModel, name: str) -> str:
    """Return a name as a path in the network; names in files of a base model lack the prefix."""
    first = name.partition(".")[0]
    is_inside = first not in network._modules and first in network.base_model._modules
    return f"{network.base_model_prefix}.{name}" if is_inside else name


def _layer_of(network: PreTrainedModel, path: str) -> int | None:
    """Return the index of the decoder layer that a path is in, or None."""
    layers = re.escape(architecture_of(network).layers)
    match = re.match(rf"{layers}\.(\d+)\.", path)
    return None if match is None else int(match[1])


def _modules_of(network: PreTrainedModel, path: str) -> list[nn.Module]:
    """Return the network's modules along a path, without the network."""
    modules: list[nn.Module] = []
    module: nn.Module | None = network
    for part in path.split("."):
        module = module._modules.get(part) if module is not None else None
        if module is None:
            break
        modules.append(module)
    return modules


def _is_of_module(network: PreTrainedModel, path: str) -> bool:
    """Return True for a tensor of a leaf module, such as a norm, or in a repeated block."""
    modules = _modules_of(network, path)
    if not modules:
        return False
    return not modules[-1]._modules or any(
        isinstance(module, nn.ModuleList) for module in modules[:-1]
    )


def _listed(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest


def _grouped(network: PreTrainedModel, names: _Unread) -> str:
    """Return the modules of the unrelated tensors, each with its number of tensors."""
    counts: Counter[str] = Counter()
    for name in names.unrelated:
        parts = name.split(".")
        counts[".".join(parts[: len(_modules_of(network, name)) + 1])] += 1
    return _listed([f"{module} ({count})" for module, count in counts.items()])
