"""What a plan would be worth on another model: its kept shares, at the same relative depth."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .as_json import json_text
from .errors import InputError, unknown
from .methods import find_method
from .models.architectures import decoder_layers
from .models.config import CONFIG, auto_class, one_line, quiet, read_config
from .models.layers import read_layer
from .models.structure import measure
from .places import place_of
from .plan import RankPlan
from .shortage import raise_shortage

BFLOAT16 = 2  # bytes per number
# Modules are made for every layer: a number of layers typed wrongly would take hours and all memory
MOST_LAYERS = 400
SHAPES: Mapping[str, Mapping[str, Any]] = {
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
"""Configs of models that people ask about; what they leave out has the family's default."""


@dataclass(frozen=True)
class WhatIf:
    """The sizes of another model, dense and with a plan's shares.

    name: of the shape, or the model type. parameters: all, tied ones once. kv_values: cached
    numbers per token. Numbers take `itemsize` bytes. unchanged: components of the plan that the
    other model has not.
    """

    name: str
    layers: int
    parameters: int
    dense_parameters: int
    kv_values: int
    dense_kv_values: int
    itemsize: int = BFLOAT16
    unchanged: tuple[str, ...] = ()

    def memory(self, context: int, dense: bool = False) -> int:
        """Bytes of the weights and of the KV cache of one sequence of so many tokens."""
        parameters = self.dense_parameters if dense else self.parameters
        cached = self.dense_kv_values if dense else self.kv_values
        return self.itemsize * (parameters + context * cached)

    def fits(self, gigabytes: float, context: int, dense: bool = False) -> bool:
        """Whether that is at most so many gigabytes (1e9 bytes); activations are not counted."""
        return self.memory(context, dense) <= gigabytes * 1e9

    def to_dict(self, context: int) -> dict[str, Any]:
        """JSON-able, with the bytes at a context."""
        return {
            "model": self.name,
            "layers": self.layers,
            "parameters": self.parameters,
            "dense_parameters": self.dense_parameters,
            "kv_bytes_per_token": self.itemsize * self.kv_values,
            "dense_kv_bytes_per_token": self.itemsize * self.dense_kv_values,
            "context": context,
            "bytes": self.memory(context),
            "dense_bytes": self.memory(context, dense=True),
            "unchanged": list(self.unchanged),
        }


def what_if(plan: RankPlan, method: str, config: str | Path | Mapping[str, Any]) -> WhatIf:
    """A plan of one model, projected onto another: a layer keeps of each component and of the cache
    what the layers at the same relative depth keep, on average.

    method: that of the plan. config: a name in `SHAPES`, a config.json or its folder, or its
    fields. Sizes only: no weights are read, and quality is not projected.

    Raises InputError for an unknown name, a broken config, sizes that do not go together or of
    more than 400 layers, and a family that is not supported.
    """
    name, fields = _fields(config)
    network = _network(name, json_text(dict(fields)))
    size, row = measure(network), find_method(method)
    shares, cached = _kept(plan), _kept_cache(plan)
    layers = len(decoder_layers(network))
    removed, uncached = 0.0, 0.0
    known: set[str] = set()
    for index in range(layers):
        layer = read_layer(network, index)
        for component, own in shares.items():
            held = layer.held(row.matrices_of(component))
            if held:
                known.add(component)
                share = _at_depth(own, index, layers)
                removed += (1 - share) * sum(one.parameters for one in held)
        uncached += (1 - _at_depth(cached, index, layers)) * layer.attention.kv_values
    return WhatIf(
        name,
        layers,
        size.parameters - round(removed),
        size.parameters,
        size.kv_values - round(uncached),
        size.kv_values,
        unchanged=tuple(component for component in shares if component not in known),
    )


def _kept(plan: RankPlan) -> dict[str, list[float]]:
    """The share of its parameters that each component keeps, layer by layer; 1 where a layer has no
    slot of it.
    """
    shares: dict[str, list[float]] = {}
    for (layer, component), rank in plan.ranks.items():
        own = shares.setdefault(component, [1.0] * plan.shape.layers)
        cost = plan.spectra[layer, component].cost
        own[layer] = cost.parameters(rank) / cost.dense
    return shares


def _kept_cache(plan: RankPlan) -> list[float]:
    """The share of its cache that each layer keeps; layers cache alike."""
    whole = plan.shape.kv_values / plan.shape.layers
    removed = [0] * plan.shape.layers
    for (layer, component), rank in plan.ranks.items():
        cost = plan.spectra[layer, component].cost
        removed[layer] += cost.kv_dense - cost.kv(rank)
    return [1 - one / whole if whole else 1.0 for one in removed]


def _at_depth(values: Sequence[float], index: int, layers: int) -> float:
    """The mean of values, one per layer, over the relative depth of layer `index` of `layers`: so
    that the mean over all layers stays.
    """
    count = len(values)
    begin, end = index * count / layers, (index + 1) * count / layers
    shares = (value * max(0.0, min(end, i + 1) - max(begin, i)) for i, value in enumerate(values))
    return sum(shares) / (end - begin)


@lru_cache(maxsize=8)  # a slider asks for the same one at every move
def _network(name: str, fields: str) -> PreTrainedModel:
    """The network of a config, as JSON, on the device "meta": shapes without numbers."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_text(fields, encoding="utf-8")
        try:
            read = read_config(Path(folder))
        except InputError as error:
            raise InputError(str(error).replace(str(Path(folder) / CONFIG), name)) from error
    layers = read.get_text_config().num_hidden_layers
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise InputError(
            f"'{name}': num_hidden_layers is {layers}; it lies from 1 to {MOST_LAYERS}."
        )
    try:
        with torch.device("meta"), quiet():
            network: PreTrainedModel = auto_class(read).from_config(read, dtype=torch.bfloat16)
    except Exception as error:  # sizes that do not go together fail wherever they meet
        raise_shortage(error)
        raise InputError(
            f"'{name}': no {read.model_type} can be made of it ({one_line(error)}). "
            "Check its sizes."
        ) from error
    return network


def _fields(config: str | Path | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(config, Mapping):
        return str(config.get("model_type", CONFIG)), config
    if str(config) in SHAPES:
        return str(config), SHAPES[str(config)]
    path = place_of(config)
    path = path / CONFIG if path.is_dir() else path
    if not path.is_file():
        raise unknown("shape", str(config), SHAPES)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"'{path}' is no JSON ({error}). Give a model's config.json.") from error
    if not isinstance(fields, dict):
        raise InputError(f"'{path}' is no config: it holds no object. Give a model's config.json.")
    return path.parent.name or path.name, fields
