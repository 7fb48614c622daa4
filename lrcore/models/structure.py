"""What a network consists of now: its tensors, its replaced modules, its size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..forms import Masked, Quantised, TwoOfFour
from ..modules.compressed import CompressedAttention, CompressedExperts, CompressedMLP
from ..modules.install import describe_module
from ..modules.projections import LowRankLinear, StoredLinear, describe
from ..modules.sliced import SlicedLayer, residual_parameters
from ..tensor_files import StoredTensor
from .architectures import architecture_of, decoder_layers
from .layers import expert_modules, module_at, projection_paths, read_layer
from .offload import stored_of

REPLACING = (CompressedAttention, CompressedMLP, CompressedExperts)


def untied(network: PreTrainedModel) -> tuple[dict[str, Tensor | StoredTensor], dict[str, str]]:
    """The unique tensors [...] by name, offloaded ones as their places, and the tied names.

    The second mapping leads from every further name of a tensor to its first.
    """
    state = network.state_dict() | stored_of(network)
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
    """The replaced modules by layer, as `install` needs them to rebuild: JSON-able, no tensors."""
    row = architecture_of(network)
    described: dict[str, Any] = {}
    owners: dict[int, str] = {}  # of the bases of earlier layers
    for index, layer in enumerate(decoder_layers(network)):
        paths = [row.attention, row.mlp]
        more: dict[str, Any] = {}
        if isinstance(layer, SlicedLayer):
            paths += row.block_norms
            more = {"parts": layer.parts}
        own = {path: module_at(layer, path) for path in paths}
        own |= {path: layer.get_submodule(path) for path in projection_paths(row, layer).values()}
        own |= expert_modules(row, layer)
        if isinstance(layer, SlicedLayer):
            own |= {path: getattr(layer, path) for path in ("attention_skip", "mlp_skip")}
        place = f"{row.layers}.{index}"
        described[place] = more | _described(own)
        for path, module in own.items():
            if isinstance(module, LowRankLinear):
                owner = owners.setdefault(id(module.down), f"{place}.{path}")
                if not owner.startswith(f"{place}."):
                    described[place]["projections"][path]["down_at"] = owner
    outside = sliced_modules(network)
    return described | ({"": _described(outside)} if outside else {})


def forms_of(network: PreTrainedModel) -> frozenset[str]:
    """What the layers hold that a dense one does not, as `may_follow` names it.

    replaced: modules of a method; factored: low-rank or stored matrices; quantised: some of them in
    few bits; masked: some with masks; shared: a `down` of several projections; bases: one of
    several layers; sliced: a narrower stream; latent: cached in the place of keys or values;
    summed: heads before the output projection; sinks: scores that belong to no key; channel: a
    rotary channel; experts: mixtures of them, which a dense model may have, too; kept: attention
    that stays the family's own, as it is in a dense model.
    """
    layers = list(decoder_layers(network))
    modules = [module for layer in layers for module in layer.modules()]
    attentions = [m for m in modules if isinstance(m, CompressedAttention)]
    low_rank = [[m for m in one.modules() if isinstance(m, LowRankLinear)] for one in layers]
    by_layer = [{id(m.down) for m in own} for own in low_rank]
    downs = [id(m.down) for own in low_rank for m in own]
    stored = [m for m in modules if isinstance(m, StoredLinear)]
    apart = [m for m in stored if not isinstance(m.form, Quantised | TwoOfFour | Masked)]
    held = {
        "replaced": bool(downs or apart) or any(isinstance(m, REPLACING) for m in modules),
        "factored": bool(downs or stored),
        "quantised": any(isinstance(m.form, Quantised) for m in stored),
        "masked": any(isinstance(m.form, TwoOfFour | Masked) for m in stored),
        "shared": len(set(downs)) < len(downs),
        "bases": sum(map(len, by_layer)) > len(set(downs)),
        "sliced": any(isinstance(one, SlicedLayer) for one in layers),
        "latent": any(m.latent for m in attentions),
        "summed": any(m.summed for m in attentions),
        "sinks": any(getattr(m, "sinks", None) is not None for m in modules),
        "channel": any(getattr(m, "q_channel", None) is not None for m in attentions),
        "experts": architecture_of(network).experts,
        "kept": architecture_of(network).kept,
    }
    return frozenset(name for name, there in held.items() if there)


def _described(own: Mapping[str, nn.Module | None]) -> dict[str, Any]:
    modules = {path: describe_module(module) for path, module in own.items()}
    projections = {
        path: module
        for path, module in own.items()
        if isinstance(module, nn.Linear | LowRankLinear | StoredLinear)
    }
    return {
        "modules": {path: entry for path, entry in modules.items() if entry is not None},
        "projections": describe(projections),
    }


def sliced_modules(network: PreTrainedModel) -> dict[str, nn.Module]:
    """Modules outside the layers that slicing has changed, by path; none in another network."""
    row = architecture_of(network)
    if not any(isinstance(layer, SlicedLayer) for layer in decoder_layers(network)):
        return {}
    named = {id(module): path for path, module in network.named_modules()}
    modules = [network.get_input_embeddings(), network.get_output_embeddings()]
    modules += [network.get_submodule(path) for path in (row.last_norm, row.positions) if path]
    return {named[id(module)]: module for module in modules}


@dataclass(frozen=True)
class ModelSize:
    """Size of a network, counted from its modules.

    parameters: numbers, tied ones once. decoder_linear: those of the projections, and of the
    matrices that slicing puts into the residual path. kv_values: cached numbers per token, of
    bytes_per_value each. stored: bytes of all tensors of a checkpoint, permutations, quantised
    weights and sparse indices included.
    """

    parameters: int
    decoder_linear: int
    kv_values: int
    bytes_per_value: int
    stored: int

    @property
    def megabytes(self) -> float:
        return self.stored / 1e6

    @property
    def kv_bytes(self) -> int:
        return self.kv_values * self.bytes_per_value


def measure(network: PreTrainedModel) -> ModelSize:
    """The size of a network, compressed or not."""
    kv = decoder_linear = 0
    bases: dict[int, int] = {}  # of the low-rank projections, and the layer that has them first
    for index, module in enumerate(decoder_layers(network)):
        layer = read_layer(network, index)
        kv += layer.attention.kv_values
        decoder_linear += layer.parameters + residual_parameters(module)
        downs = {id(m.down): m.down for m in module.modules() if isinstance(m, LowRankLinear)}
        shared = [one for key, one in downs.items() if bases.setdefault(key, index) != index]
        decoder_linear -= sum(one.weight.numel() for one in shared)
    parameters = sum(p.numel() for p in network.parameters())
    parameters += sum(
        module.uncounted for module in network.modules() if isinstance(module, StoredLinear)
    )
    return ModelSize(
        parameters,
        decoder_linear,
        kv,
        network.dtype.itemsize,
        sum(each.nbytes for each in untied(network)[0].values()),
    )
