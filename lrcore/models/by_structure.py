"""Families without a row in `ARCHITECTURES`: their layers and matrices, found by structure."""

import inspect
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from ..layers.layer import CLAMPED, LIMITED, gate_function, gated_states
from ..layers.modules.compressed import CompressedExperts
from ..layers.modules.projections import LowRankLinear, StoredLinear
from ..system.errors import InputError, with_article
from .architecture import Architecture
from .mixture_families import EXPERT_COUNTS

# What is known of such a family before its network is built. "eager" is the attention that all
# families of transformers have.
BY_STRUCTURE = Architecture(
    attention="",
    up="",
    down="",
    gate=None,
    position="none",
    scale=None,
    native_attention=True,
    factors={},
    kernel="eager",
    width=None,
    sequential=None,
    is_inferred=True,
)
# Matrices whose weights a module reads without calling them (also of indexers, which select the
# tokens that a query attends to), routed experts, and routers
EXCLUDED = ("dt_proj", "experts", "router", "indexer")
_rows: WeakKeyDictionary[PreTrainedModel, Architecture] = WeakKeyDictionary()


def is_causal(model_type: str) -> bool:
    """Return True for a type of which transformers has a causal language model."""
    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def refusal(config: PretrainedConfig) -> str:
    """Return why a family without a row cannot be run as a causal language model, or ""."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder with a decoder"
    is_encoder = hasattr(config, "type_vocab_size")  # segments of a sentence pair, as in BERT
    if is_encoder and not getattr(config, "is_decoder", False):
        return "its tokens attend to later tokens"
    return ""


def infer_row(network: PreTrainedModel) -> Architecture:
    """Return a row for a network: its decoder layers, the linear modules in them, and experts.

    The decoder layers are the list of modules with the most parameters. The matrices are named by
    their paths in a layer. Routers and matrices that layers share are left out, and routed experts
    that are not stacked as usual. Raises InputError if the network has no list of modules.
    """
    if network not in _rows:
        _rows[network] = _search(network)
    return _rows[network]


def _search(network: PreTrainedModel) -> Architecture:
    modules = network.named_modules()
    lists = {path: module for path, module in modules if isinstance(module, nn.ModuleList)}
    family = with_article(network.config.model_type).capitalize()
    if not lists:
        raise InputError(f"{family} model has no list of decoder layers to run one by one.")
    layers_path = max(lists, key=lambda path: sum(p.numel() for p in lists[path].parameters()))
    layers = list(lists[layers_path])
    config = network.config.get_text_config()
    routed = {getattr(config, name, None) for name in EXPERT_COUNTS}
    shared = _shared_paths(layers)
    names: dict[str, str] = {}
    for layer in layers:
        names |= {path: path for path in _linear_paths(layer, routed) if path not in shared}
    if not names:
        raise InputError(f"{family} model has no linear modules in '{layers_path}' to compress.")
    signature = inspect.signature(type(layers[0]).forward)
    is_tuple = str(signature.return_annotation).startswith("tuple")
    returns: Literal["tensor", "tuple"] = "tuple" if is_tuple else "tensor"
    row = replace(
        BY_STRUCTURE,
        layers=layers_path,
        factors=names,
        layer_returns=returns,
        passes=next((name for name in signature.parameters if name.startswith("prev_")), None),
    )
    return replace(row, **_expert_fields(layers, config))


def _expert_fields(layers: list[nn.Module], config: PretrainedConfig) -> dict[str, Any]:
    """Return the fields of a row that describe routed experts; {} without experts to compress."""
    for layer in layers:
        for path, module in layer.named_modules():
            block, _, name = path.rpartition(".")
            activation = _activation_of(module, config) if name == "experts" else None
            if activation is None:
                continue
            for part, router in layer.get_submodule(block).named_modules(prefix=block):
                if isinstance(getattr(router, "top_k", None), int):
                    fields = {"mlp": block, "router": part.removeprefix(".")}
                    return {"experts": True, "activation": activation, **fields}
    return {}


def _activation_of(experts: nn.Module, config: PretrainedConfig) -> str | None:
    """Return the activation of separate or stacked experts; None if it is unknown."""
    if isinstance(experts, CompressedExperts):
        return experts.activation
    function = str(getattr(config, BY_STRUCTURE.activation, None))
    if function not in ACT2FN or getattr(experts, "has_post_expert_norm", False):
        return None
    if not isinstance(getattr(experts, "gate_up_proj", None), nn.Parameter):
        is_stacked = isinstance(getattr(experts, "up_proj", None), nn.Parameter)
        return function if is_stacked and not getattr(experts, "has_gate", True) else None
    if not hasattr(experts, "has_gate"):  # LongCat-Flash; other modules may have another layout
        has_identities = any(isinstance(child, nn.Identity) for child in experts.children())
        return function if has_identities else None
    x = torch.linspace(-1e3, 1e3, 64, dtype=torch.float32)  # large numbers: some families clamp
    gate, up = x.chunk(2) if experts.is_concatenated else (x[::2], x[1::2])
    alpha, limit = (getattr(config, f"swiglu_{name}", None) for name in ("alpha", "limit"))
    for activation in (function, f"{LIMITED}:{function}:{limit}", f"{CLAMPED}:{alpha}:{limit}"):
        if "None" not in activation:
            states = gated_states(activation, ACT2FN[gate_function(activation)], gate, up)
            if torch.equal(experts._apply_gate(x), states):  # type: ignore[operator]
                return activation
    return None


def _shared_paths(layers: list[nn.Module]) -> set[str]:
    """Return the paths of modules whose weight several layers share, as in Zamba."""
    paths: dict[int, list[str]] = {}
    for layer in layers:
        for name, weight in layer.named_parameters():
            paths.setdefault(id(weight), []).append(name.removesuffix(".weight"))
    return {path for found in paths.values() if len(found) > 1 for path in found}


def _linear_paths(layer: nn.Module, routed: set[int | None]) -> list[str]:
    """Return the paths of the linear modules of a layer, without parts of factored matrices.

    routed: numbers of experts; a matrix with so many outputs is a router.
    """
    paths: list[str] = []
    for path, module in layer.named_modules():
        if not isinstance(module, nn.Linear | Conv1D | LowRankLinear | StoredLinear):
            continue
        is_part = any(path.startswith(f"{earlier}.") for earlier in paths)
        is_adapter = "adapter" in path  # low-rank pairs of the shared blocks of Zamba 2
        is_excluded = is_adapter or not {*EXCLUDED}.isdisjoint(path.split("."))
        is_router = getattr(module, "out_features", None) in routed - {None}
        if not (is_part or is_excluded or is_router):
            paths.append(path)
    return paths
