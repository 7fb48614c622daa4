"""Making the modules that compression puts into a network: of values, or empty from their description."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from .latent import LatentAttention
from .modules import CompressedAttention, CompressedMLP
from .projections import rebuild


def attention_module(network: nn.Module, place: str, sizes: Mapping[str, Any], index: int, native: nn.Module) -> CompressedAttention:
    """An attention without projections for layer `index`, at `place` in the network. Norms of queries and keys of the module it
    replaces go on serving."""
    latent = sizes.get("latent", False)
    module = LatentAttention(sizes, index, _rotary_of(network, place), network.dtype) if latent else CompressedAttention(sizes, index)
    if module.qk_norm is not None:
        module.q_norm, module.k_norm = native.q_norm, native.k_norm
    return module


def _rotary_of(network: nn.Module, place: str) -> nn.Module | None:
    """The module beside the layers that gives cos and sin for positions; None in a family without rotary positions."""
    return getattr(network.get_submodule(place.rsplit(".", 2)[0]), "rotary_emb", None)


def describe_module(module: nn.Module | None) -> dict[str, Any] | None:
    """What `install` needs to make an attention or MLP of this kind and shape, JSON-able; None for one that is not ours."""
    if isinstance(module, CompressedAttention):
        return {"kind": "attention", "layer": module.layer_idx, **module.sizes()}
    if isinstance(module, CompressedMLP):
        return {"kind": "mlp", "activation": module.activation}
    return None


def install(network: nn.Module, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Put empty modules of the described shapes in place, layer by layer; the caller loads the weights.

    layers: by path of a decoder layer, its "modules" and then its "projections", each by path within the layer.
    """
    for place, entry in layers.items():
        layer = network.get_submodule(place)
        for path, described in entry["modules"].items():
            if described["kind"] == "mlp":
                module = CompressedMLP(described["activation"])
            else:
                module = attention_module(network, place, described, described["layer"], layer.get_submodule(path))
            layer.set_submodule(path, module)
        for path, projection in rebuild(entry["projections"], network.dtype).items():
            parent, _, leaf = path.rpartition(".")
            setattr(layer.get_submodule(parent), leaf, projection)
