"""Projection of a plan onto another model: the same ratios at the same relative depth."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..methods import find_method
from ..models.architectures import decoder_layers
from ..models.config import CONFIG, auto_class, error_line, quiet, read_config
from ..models.layers import read_layer
from ..models.model_size import measure
from ..ranks.plan import RankPlan
from ..system.as_json import json_text
from ..system.errors import InputError, unknown
from ..system.path_access import place_of
from ..system.resource_errors import raise_shortage

BFLOAT16 = 2  # bytes per number
# Modules are made for each layer: a mistyped number of layers would take hours and all memory.
MAX_LAYERS = 400
MODEL_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "Llama-2-7B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
    },
    "Llama-3-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "Llama-3-70B": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "Qwen2.5-7B": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
}
"""Configs of common models; other fields have the defaults of the family."""


@dataclass(frozen=True)
class WhatIf:
    """The sizes of another model, dense and with the ratios of a plan.

    name: of the shape, or the model type. parameters: all, with tied parameters counted once.
    kv_values: cached numbers per token. Numbers take `itemsize` bytes. unchanged: components of the
    plan that the other model does not have. state_bytes: see `ModelAccount`.
    """

    name: str
    layers: int
    parameters: int
    dense_parameters: int
    kv_values: int
    dense_kv_values: int
    itemsize: int = BFLOAT16
    unchanged: tuple[str, ...] = ()
    state_bytes: int = 0

    def memory(self, context: int, dense: bool = False) -> int:
        """Return the bytes of the weights and of the cache of a sequence of `context` tokens.

        Without tokens there is no cache.
        """
        parameters = self.dense_parameters if dense else self.parameters
        cached = self.dense_kv_values if dense else self.kv_values
        states = self.state_bytes if context else 0
        return self.itemsize * (parameters + context * cached) + states

    def fits(self, gigabytes: float, context: int, dense: bool = False) -> bool:
        """Return whether the memory is at most `gigabytes` (1e9 bytes), without activations."""
        return self.memory(context, dense) <= gigabytes * 1e9

    def to_dict(self, context: int) -> dict[str, Any]:
        """Return the sizes as JSON-able values, with the bytes for a context."""
        return {
            "model": self.name,
            "layers": self.layers,
            "parameters": self.parameters,
            "dense_parameters": self.dense_parameters,
            "kv_bytes_per_token": self.itemsize * self.kv_values,
            "dense_kv_bytes_per_token": self.itemsize * self.dense_kv_values,
            "state_bytes": self.state_bytes,
            "context": context,
            "bytes": self.memory(context),
            "dense_bytes": self.memory(context, dense=True),
            "unchanged": list(self.unchanged),
        }


def what_if(plan: RankPlan, method: str, config: str | Path | Mapping[str, Any]) -> WhatIf:
    """Project a plan of a model onto another.

    Each layer retains the average share of each component and of the cache at the same relative
    depth. method: that of the plan. config: a name in `MODEL_SHAPES`, a config.json or the folder,
    or the fields. Only sizes are computed: no weights are read, and quality is not estimated.

    Raises InputError for an unknown name, an invalid config, inconsistent sizes or more than 400
    layers, and an unsupported family.
    """
    name, fields = _fields(config)
    network = _network(name, json_text(dict(fields)))
    size, row = measure(network), find_method(method)
    shares, cache_shares = _component_shares(plan), _cache_shares(plan)
    layers = len(decoder_layers(network))
    removed, uncached = 0.0, 0.0
    changed: set[str] = set()
    for index in range(layers):
        layer = read_layer(network, index)
        for component, layer_shares in shares.items():
            held = layer.projections_named(row.matrices_of(component))
            if held:
                changed.add(component)
                share = _at_depth(layer_shares, index, layers)
                removed += (1 - share) * sum(one.parameters for one in held)
        uncached += (1 - _at_depth(cache_shares, index, layers)) * layer.attention.kv_values
    return WhatIf(
        name,
        layers,
        size.parameters - round(removed),
        size.parameters,
        size.kv_values - round(uncached),
        size.kv_values,
        unchanged=tuple(component for component in shares if component not in changed),
        state_bytes=size.state_bytes,
    )


def _component_shares(plan: RankPlan) -> dict[str, list[float]]:
    """Return the share of the parameters that each component retains, layer by layer.

    1 for a layer without a slot of the component.
    """
    shares: dict[str, list[float]] = {}
    for (layer, component), rank in plan.ranks.items():
        layer_shares = shares.setdefault(component, [1.0] * plan.shape.layers)
        cost = plan.spectra[layer, component].cost
        layer_shares[layer] = cost.parameters(rank) / cost.dense
    return shares


def _cache_shares(plan: RankPlan) -> list[float]:
    """Return the share of the cache that each layer retains; all layers cache the same amount."""
    dense = plan.shape.kv_values / plan.shape.layers
    removed = [0] * plan.shape.layers
    for (layer, component), rank in plan.ranks.items():
        cost = plan.spectra[layer, component].cost
        removed[layer] += cost.kv_dense - cost.kv(rank)
    return [1 - values / dense if dense else 1.0 for values in removed]


def _at_depth(values: Sequence[float], index: int, layers: int) -> float:
    """Return the mean of values, one per layer, over the depth of layer `index` of `layers`.

    The depth is relative; the mean over all layers is preserved.
    """
    count = len(values)
    begin, end = index * count / layers, (index + 1) * count / layers
    shares = (value * max(0.0, min(end, i + 1) - max(begin, i)) for i, value in enumerate(values))
    return sum(shares) / (end - begin)


@lru_cache(maxsize=8)  # a slider requests the same network on each move
def _network(name: str, fields: str) -> PreTrainedModel:
    """Return the network of a config, in JSON, on the device "meta": shapes without numbers."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(fields, encoding="utf-8")
        try:
            read = read_config(Path(folder))
        except InputError as error:
            raise InputError(str(error).replace(str(Path(folder) / CONFIG), name)) from error
    layers = read.get_text_config().num_hidden_layers
    if not isinstance(layers, int) or not 1 <= layers <= MAX_LAYERS:
        raise InputError(f"'{name}': num_hidden_layers is {layers}; it must be 1 to {MAX_LAYERS}.")
    try:
        with torch.device("meta"), quiet():
            network: PreTrainedModel = auto_class(read).from_config(read, dtype=torch.bfloat16)
    except Exception as error:  # inconsistent sizes fail at various points of the model's code
        raise_shortage(error)
        raise InputError(
            f"'{name}': the config does not define a model of type {read.model_type} "
            f"({error_line(error)}). Check its sizes."
        ) from error
    return network


def _fields(config: str | Path | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(config, Mapping):
        return str(config.get("model_type", CONFIG)), config
    if str(config) in MODEL_SHAPES:
        return str(config), MODEL_SHAPES[str(config)]
    path = place_of(config)
    path = path / CONFIG if path.is_dir() else path
    if not path.is_file():
        raise unknown("shape", str(config), MODEL_SHAPES)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"'{path}' is not JSON ({error}). Use a model's config.json.") from error
    if not isinstance(fields, dict):
        raise InputError(f"'{path}' is not a JSON object. Use a model's config.json.")
    return path.parent.name or path.name, fields
