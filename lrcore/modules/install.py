"""Making the modules of a compressed network: from values, or empty from their description."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .compressed import CompressedAttention, CompressedExperts, CompressedMLP
from .latent import LatentAttention
from .own_tables import keep_table
from .projections import rebuild
from .sliced import SlicedLayer, StreamNorm, resized

OWN = (CompressedAttention, SlicedLayer)
JOINED: dict[tuple[type[Any], type[Any]], type[Any]] = {}  # made once for two classes


def standing_for(native: nn.Module, own: type[Any]) -> type[Any]:
    """`own`, as a subclass of the native module's class too: transformers finds the modules whose
    attentions and hidden states it records by their class.
    """
    family: type[Any] = next(k for k in type(native).__mro__ if not issubclass(k, OWN))
    if (own, family) not in JOINED:
        JOINED[own, family] = type(own.__name__, (own, family), {"__module__": own.__module__})
    return JOINED[own, family]


def attention_module(
    network: PreTrainedModel, place: str, sizes: Mapping[str, Any], index: int, native: nn.Module
) -> CompressedAttention:
    """An attention without projections for layer `index`, at path `place` in the network.

    It uses the query and key norms, the sinks and the rotary table of the native module that it
    replaces.
    """
    module: CompressedAttention
    if not sizes.get("latent", False):
        module = standing_for(native, CompressedAttention)(sizes, index)
    else:
        kind = standing_for(native, LatentAttention)
        module = kind(sizes, index, _rotary_of(network, place), network.dtype)
    module.config = network.config.get_text_config()
    keep_table(module, native)
    module.sinks = getattr(native, "sinks", None)
    if module.qk_norm is not None:
        module.q_norm, module.k_norm = native.q_norm, native.k_norm
    return module


def _rotary_of(network: PreTrainedModel, place: str) -> nn.Module | None:
    """The rotary embedding module beside the layers; None in a family without one."""
    return getattr(network.get_submodule(place.rsplit(".", 2)[0]), "rotary_emb", None)


def describe_module(module: nn.Module | None) -> dict[str, Any] | None:
    """Kind and shape from which `install` makes a module, JSON-able.

    None for a projection and for a native module.
    """
    if isinstance(module, CompressedAttention):
        return {"kind": "attention", "layer": module.layer_idx, **module.sizes()}
    if isinstance(module, CompressedMLP):
        return {"kind": "mlp", "activation": module.activation}
    if isinstance(module, CompressedExperts):
        return {"kind": "experts", "activation": module.activation, "count": len(module)}
    if isinstance(module, StreamNorm):
        return {"kind": "norm", "width": module.width, "eps": module.eps}
    if isinstance(module, nn.Embedding):
        return {"kind": "embedding", "size": module.embedding_dim}
    return None


def install(network: PreTrainedModel, places: Mapping[str, Mapping[str, Any]]) -> None:
    """Install empty modules of the described shapes; the caller loads the weights.

    places: by path of a decoder layer ("" for changed modules outside the layers), its "parts" if
    it was sliced, its "modules", and its "projections", by their paths within the layer.
    """
    # layer 10 stands before layer 9 in a config that transformers wrote
    for place, entry in sorted(places.items(), key=lambda one: _takes_bases(one[1])):
        if "parts" in entry:
            native = network.get_submodule(place)
            kind = standing_for(native, SlicedLayer)
            network.set_submodule(place, kind(native, entry["parts"]))
        holder = network.get_submodule(place)
        for path, sizes in entry["modules"].items():
            native = holder.get_submodule(path)
            holder.set_submodule(path, _empty_module(network, place, sizes, native))
        described = entry["projections"]
        if not place:  # the head, as wide as the config's vocabulary: that may have been resized
            heads = {path: holder.get_submodule(path) for path in described}
            described = {p: {**described[p], "out": one.out_features} for p, one in heads.items()}
        made = rebuild(described, network.dtype, network.get_submodule)
        for path, projection in made.items():
            parent, _, leaf = path.rpartition(".")
            beside = holder.get_submodule(parent)
            setattr(beside, leaf, in_place_of(getattr(beside, leaf, None), projection))


def _takes_bases(entry: Mapping[str, Any]) -> bool:
    """Whether projections share the basis of an earlier layer."""
    return any("down_at" in described for described in entry["projections"].values())


def in_place_of(native: nn.Module | None, projection: nn.Module) -> nn.Module:
    """The projection; a plain matrix computes as the family's own class does, to the bit: Falcon's
    adds the bias to the product that was rounded.
    """
    family: type[Any] = type(native)
    own = issubclass(family, nn.Linear) and family.__module__.startswith("transformers.models.")
    if own and type(projection) is nn.Linear:
        projection.__class__ = family
    return projection


def places_in(places: Mapping[str, Mapping[str, Any]], inside: str) -> dict[str, dict[str, Any]]:
    """The part of a description, see `install`, that lies in the module at path `inside` of the
    network, by paths from there; all of it for "".
    """
    if not inside:
        return {place: dict(entry) for place, entry in places.items()}
    start = f"{inside}."
    kept: dict[str, dict[str, Any]] = {}
    for place, entry in places.items():
        if place:
            own = {path: _inside(start, one) for path, one in entry["projections"].items()}
            kept[place.removeprefix(start)] = dict(entry) | {"projections": own}
            continue
        kept[""] = {
            kind: {p.removeprefix(start): one for p, one in own.items() if p.startswith(start)}
            for kind, own in entry.items()
        }
    return kept


def _inside(start: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """A projection whose basis is one of an earlier layer, by the path from there."""
    owner = described.get("down_at")
    return {**described, **({"down_at": owner.removeprefix(start)} if owner else {})}


def shared_names(network: nn.Module, kind: str) -> dict[str, str]:
    """Further names of tensors that several projections share, each with the first; kind:
    "parameters" or "buffers".
    """
    first: dict[int, str] = {}
    named = getattr(network, f"named_{kind}")(remove_duplicate=False)
    places = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    return {name: own for name, own in places.items() if name != own and ".down." in name}


def _empty_module(
    network: PreTrainedModel, place: str, described: Mapping[str, Any], native: Any
) -> nn.Module:
    if described["kind"] == "mlp":
        return CompressedMLP(described["activation"])
    if described["kind"] == "experts":
        return CompressedExperts(described["activation"], described["count"])
    if described["kind"] == "norm":
        return StreamNorm(described["width"], described["eps"])
    if described["kind"] == "embedding":
        shape = native.num_embeddings, described["size"]
        return resized(native, torch.empty(*shape, dtype=network.dtype))
    return attention_module(network, place, described, described["layer"], native)
