"""Making the modules that compression puts into a network: of values, or empty from their
description.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .compressed import CompressedAttention, CompressedMLP
from .latent import LatentAttention
from .projections import rebuild
from .sliced import SlicedLayer, StreamNorm, resized


def attention_module(
    network: nn.Module, place: str, sizes: Mapping[str, Any], index: int, native: nn.Module
) -> CompressedAttention:
    """An attention without projections for layer `index`, at `place` in the network.

    Norms of queries and keys of the module it
    replaces go on serving.
    """
    latent = sizes.get("latent", False)
    module = (
        LatentAttention(sizes, index, _rotary_of(network, place), network.dtype)
        if latent
        else CompressedAttention(sizes, index)
    )
    if module.qk_norm is not None:
        module.q_norm, module.k_norm = native.q_norm, native.k_norm
    return module


def _rotary_of(network: nn.Module, place: str) -> nn.Module | None:
    """The module beside the layers that gives cos and sin for positions; None in a family
    without rotary positions.
    """
    return getattr(network.get_submodule(place.rsplit(".", 2)[0]), "rotary_emb", None)


def describe_module(module: nn.Module | None) -> dict[str, Any] | None:
    """What `install` needs to make a module of this kind and shape, JSON-able; None for a
    projection and for what is a family's own.
    """
    if isinstance(module, CompressedAttention):
        return {"kind": "attention", "layer": module.layer_idx, **module.sizes()}
    if isinstance(module, CompressedMLP):
        return {"kind": "mlp", "activation": module.activation}
    if isinstance(module, StreamNorm):
        return {"kind": "norm", "width": module.width, "eps": module.eps}
    if isinstance(module, nn.Embedding):
        return {"kind": "embedding", "size": module.embedding_dim}
    return None


def install(network: nn.Module, places: Mapping[str, Mapping[str, Any]]) -> None:
    """Put empty modules of the described shapes in place, one place after another; the caller loads
    the weights.

    places: by path of a decoder layer ("" for what is outside of them, where that has changed), its
    "parts" if it was sliced, its "modules" and then its "projections", each by path within the
    layer.
    """
    for place, entry in places.items():
        if "parts" in entry:
            network.set_submodule(place, SlicedLayer(network.get_submodule(place), entry["parts"]))
        holder = network.get_submodule(place)
        for path, described in entry["modules"].items():
            holder.set_submodule(
                path, _empty_module(network, place, described, holder.get_submodule(path))
            )
        for path, projection in rebuild(entry["projections"], network.dtype).items():
            parent, _, leaf = path.rpartition(".")
            setattr(holder.get_submodule(parent), leaf, projection)


def _empty_module(
    network: nn.Module, place: str, described: Mapping[str, Any], native: nn.Module
) -> nn.Module:
    if described["kind"] == "mlp":
        return CompressedMLP(described["activation"])
    if described["kind"] == "norm":
        return StreamNorm(described["width"], described["eps"])
    if described["kind"] == "embedding":
        return resized(
            native, torch.empty(native.num_embeddings, described["size"], dtype=network.dtype)
        )
    return attention_module(network, place, described, described["layer"], native)
