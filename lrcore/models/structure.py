"""Description of a network's tensors and replaced modules."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..layers.forms import Masked, Quantized, TwoOfFour
from ..layers.modules.compressed import CompressedAttention, CompressedExperts, CompressedMLP
from ..layers.modules.install import describe_module
from ..layers.modules.projections import LowRankLinear, StoredLinear, describe
from ..layers.modules.sliced import SlicedLayer
from ..system.tensor_files import StoredTensor
from .architecture import module_at
from .architectures import architecture_of, decoder_layers
from .layers import expert_modules, experts_path, projection_paths
from .offload import stored_tensors_of

REPLACING = (CompressedAttention, CompressedMLP, CompressedExperts)


def untied(network: PreTrainedModel) -> tuple[dict[str, Tensor | StoredTensor], dict[str, str]]:
    """Return the unique tensors [...] by name, and the tied names.

    Offloaded tensors are returned as `StoredTensor`. The second mapping maps each further name of a
    tensor to the first.
    """
    state = network.state_dict() | stored_tensors_of(network)
    first: dict[Any, str] = {}
    unique: dict[str, Tensor | StoredTensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        key: Any = tensor
        if isinstance(tensor, Tensor):
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        same = first.setdefault(key, name)
        if same == name:
            unique[name] = tensor
        else:
            tied[name] = same
    return unique, tied


def structure(network: PreTrainedModel) -> dict[str, Any]:
    """Describe the replaced modules by layer for `install`, as JSON values without tensors."""
    row = architecture_of(network)
    described: dict[str, Any] = {}
    owners: dict[int, str] = {}  # of the bases of earlier layers
    for index, layer in enumerate(decoder_layers(network)):
        paths = [row.of_layer(layer).attention, row.mlp]
        extra: dict[str, Any] = {}
        if isinstance(layer, SlicedLayer):
            paths += row.block_norms
            extra = {"parts": layer.parts}
        modules = {path: module_at(layer, path) for path in paths}
        for path in projection_paths(row, layer).values():
            modules[path] = layer.get_submodule(path)
        modules |= expert_modules(row, layer)
        if isinstance(layer, SlicedLayer):
            modules |= {path: getattr(layer, path) for path in ("attention_skip", "mlp_skip")}
        layer_path = f"{row.layers}.{index}"
        described[layer_path] = extra | _described(modules)
        for path, module in modules.items():
            if isinstance(module, LowRankLinear):
                owner = owners.setdefault(id(module.down), f"{layer_path}.{path}")
                if not owner.startswith(f"{layer_path}."):
                    described[layer_path]["projections"][path]["down_at"] = owner
    outside = sliced_modules(network)
    return described | ({"": _described(outside)} if outside else {})


def compressed_structures(network: PreTrainedModel) -> frozenset[str]:
    """Return the structures of a network that a dense network lacks, as `step_rules` names them.

    replaced: modules of a method. factored: low-rank or stored matrices. quantized, masked: stored
    matrices with few bits, or with masks. shared: a `down` of several projections. bases: a `down`
    of several layers. sliced: a narrower residual stream. latent: latents are cached instead of
    keys or values. summed: heads are summed before the output projection. sinks: scores without a
    key. channel: a rotary channel. experts: mixtures of experts, also in dense models.
    native_attention: attention modules that are never replaced, also in dense models. mixers: other
    modules in place of attention, also in dense models. inferred: the family has no row, also in
    dense models.
    """
    row = architecture_of(network)
    held = {"experts": _has_experts(network), "inferred": row.is_inferred}
    held["native_attention"] = row.native_attention and not row.is_inferred
    held["mixers"] = row.mixer is not None
    held |= _structures_of_matrices(network) | _structures_of_modules(network)
    return frozenset(name for name, is_held in held.items() if is_held)


def _has_experts(network: PreTrainedModel) -> bool:
    row = architecture_of(network)
    if not row.experts:
        return False
    path = experts_path(row)
    return any(module_at(layer, path) is not None for layer in decoder_layers(network))


def _structures_of_matrices(network: PreTrainedModel) -> dict[str, bool]:
    """Return the structures of low-rank and stored matrices."""
    layers = decoder_layers(network)
    stored = [m.form for m in layers.modules() if isinstance(m, StoredLinear)]
    downs = [
        [id(m.down) for m in layer.modules() if isinstance(m, LowRankLinear)] for layer in layers
    ]
    unique = {down for of_layer in downs for down in of_layer}
    is_factored = any(not isinstance(f, Quantized | TwoOfFour | Masked) for f in stored)
    return {
        "replaced": bool(unique) or is_factored,
        "factored": bool(unique or stored),
        "quantized": any(isinstance(form, Quantized) for form in stored),
        "masked": any(isinstance(form, TwoOfFour | Masked) for form in stored),
        "shared": len(unique) < sum(map(len, downs)),
        "bases": len(unique) < sum(len(set(of_layer)) for of_layer in downs),
    }


def _structures_of_modules(network: PreTrainedModel) -> dict[str, bool]:
    """Return the structures of replaced layers and attention modules."""
    layers = decoder_layers(network)
    modules = list(layers.modules())
    attentions = [m for m in modules if isinstance(m, CompressedAttention)]
    held = {
        "sliced": any(isinstance(layer, SlicedLayer) for layer in layers),
        "latent": any(m.latent for m in attentions),
        "summed": any(m.summed for m in attentions),
        "sinks": any(getattr(m, "sinks", None) is not None for m in modules),
        "channel": any(getattr(m, "q_channel", None) is not None for m in attentions),
    }
    return held | ({"replaced": True} if any(isinstance(m, REPLACING) for m in modules) else {})


def _described(modules: Mapping[str, nn.Module | None]) -> dict[str, Any]:
    replaced = {path: describe_module(module) for path, module in modules.items()}
    projections = {
        path: module
        for path, module in modules.items()
        if isinstance(module, nn.Linear | LowRankLinear | StoredLinear)
    }
    return {
        "modules": {path: entry for path, entry in replaced.items() if entry is not None},
        "projections": describe(projections),
    }


def sliced_modules(network: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the modules outside the layers that slicing has changed, by path; {} if not sliced."""
    row = architecture_of(network)
    if not any(isinstance(layer, SlicedLayer) for layer in decoder_layers(network)):
        return {}
    named = {id(module): path for path, module in network.named_modules()}
    modules = [network.get_input_embeddings(), network.get_output_embeddings()]
    modules += [network.get_submodule(path) for path in (row.last_norm, row.positions) if path]
    return {named[id(module)]: module for module in modules}
