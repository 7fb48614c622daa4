"""Creation of the modules of a compressed network: from values, or empty from a description."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .compressed import CompressedAttention, CompressedExperts, CompressedMLP
from .latent import LatentAttention
from .projections import rebuild
from .rotary import copy_table
from .sliced import SlicedLayer, StreamNorm, resize_embedding

COMPRESSED_CLASSES = (CompressedAttention, SlicedLayer)
JOINED: dict[tuple[type[Any], type[Any]], type[Any]] = {}  # created once per pair of classes


def subclass_of_native(native: nn.Module, compressed_class: type[Any]) -> type[Any]:
    """Return `compressed_class` as a subclass of the native module's class, too.

    transformers finds the modules whose attentions and hidden states it records by their class.
    """
    families = (k for k in type(native).__mro__ if not issubclass(k, COMPRESSED_CLASSES))
    return _joined_class(compressed_class, next(families))


def _joined_class(compressed_class: type[Any], family: type[Any]) -> type[Any]:
    """Return the class of both; its modules can be pickled although no module holds it."""
    classes = compressed_class, family
    if classes not in JOINED:
        fields = {"__module__": compressed_class.__module__, "__reduce_ex__": _reduce}
        JOINED[classes] = type(compressed_class.__name__, classes, fields)
    return JOINED[classes]


def _reduce(module: nn.Module, _protocol: int) -> tuple[Any, ...]:
    """Return how pickle makes the module, as for `__reduce_ex__`."""
    return _without_state, type(module).__bases__, module.__getstate__()


def _without_state(compressed_class: type[Any], family: type[Any]) -> Any:
    return nn.Module.__new__(_joined_class(compressed_class, family))


def attention_module(
    network: PreTrainedModel, path: str, sizes: Mapping[str, Any], index: int, native: nn.Module
) -> CompressedAttention:
    """Return an attention without projections for layer `index`, at `path` in the network.

    It uses the query and key norms, the sinks and the rotary table of the native module that it
    replaces.
    """
    module: CompressedAttention
    if not sizes.get("latent"):
        module = subclass_of_native(native, CompressedAttention)(sizes, index)
    else:
        attention_class = subclass_of_native(native, LatentAttention)
        module = attention_class(sizes, index, _rotary_of(network, path), network.dtype)
    module.config = network.config.get_text_config()
    copy_table(module, native)
    module.sinks = getattr(native, "sinks", None)
    if module.qk_norm is not None:
        module.q_norm, module.k_norm = (_norm_of(native, name) for name in "qk")
    return module


def _norm_of(native: Any, name: str) -> nn.Module:
    """Return the norm of the queries or keys ("q", "k") of a native attention."""
    path = next(path for path in (f"{name}_norm", f"{name}_layernorm") if hasattr(native, path))
    norm: nn.Module = native.get_submodule(path)
    return norm


def _rotary_of(network: PreTrainedModel, path: str) -> nn.Module | None:
    """Return the rotary embedding module of the network; None if the family has none."""
    return getattr(network.get_submodule(path.rsplit(".", 2)[0]), "rotary_emb", None)


def describe_module(module: nn.Module | None) -> dict[str, Any] | None:
    """Return the JSON-able kind and shape from which `install` makes a module.

    None for a projection and for a native module.
    """
    if isinstance(module, CompressedAttention):
        return {"kind": "attention", "layer": module.layer_idx, **module.sizes()}
    if isinstance(module, CompressedMLP):
        return {"kind": "mlp", "activation": module.activation}
    if isinstance(module, CompressedExperts):
        sizes = {"count": len(module), "identities": module.identities}
        return {"kind": "experts", "activation": module.activation, **sizes}
    if isinstance(module, StreamNorm):
        return {"kind": "norm", "width": module.width, "eps": module.eps}
    if isinstance(module, nn.Embedding):
        return {"kind": "embedding", "size": module.embedding_dim}
    return None


def install(network: PreTrainedModel, structure: Mapping[str, Mapping[str, Any]]) -> None:
    """Install empty modules of the described shapes; the caller loads the weights.

    structure: by path of a decoder layer ("" for changed modules outside the layers): "parts" if
    the layer was sliced, "modules", and "projections", by path within the layer.
    """
    # transformers sorts names in a config, so layer 10 precedes layer 9
    in_order = sorted(structure.items(), key=lambda item: _takes_bases(item[1]))
    for layer_path, entry in in_order:
        if "parts" in entry:
            native = network.get_submodule(layer_path)
            kind = subclass_of_native(native, SlicedLayer)
            network.set_submodule(layer_path, kind(native, entry["parts"]))
        layer = network.get_submodule(layer_path)
        for path, sizes in entry["modules"].items():
            native = layer.get_submodule(path)
            layer.set_submodule(path, _empty_module(network, layer_path, sizes, native))
        described = entry["projections"]
        if not layer_path:  # the head: the vocabulary may have been resized
            heads = {path: layer.get_submodule(path) for path in described}
            described = {p: {**described[p], "out": head.out_features} for p, head in heads.items()}
        projections = rebuild(described, network.dtype, network.get_submodule)
        for path, projection in projections.items():
            parent, _, leaf = path.rpartition(".")
            parent_module = layer.get_submodule(parent)
            setattr(
                parent_module,
                leaf,
                with_family_class(getattr(parent_module, leaf, None), projection),
            )


def _takes_bases(entry: Mapping[str, Any]) -> bool:
    """Return True if a projection shares the basis of an earlier layer."""
    return any("down_at" in described for described in entry["projections"].values())


def with_family_class(native: nn.Module | None, projection: nn.Module) -> nn.Module:
    """Return the projection; a dense matrix gets the family's Linear class.

    The family's class may compute differently in the last bit: Falcon's adds the bias to the
    rounded product.
    """
    family: type[Any] = type(native)
    is_linear = issubclass(family, nn.Linear)
    is_family_class = is_linear and family.__module__.startswith("transformers.models.")
    if is_family_class and type(projection) is nn.Linear:
        projection.__class__ = family
    return projection


def structure_within(
    structure: Mapping[str, Mapping[str, Any]], inside: str
) -> dict[str, dict[str, Any]]:
    """Return the part of a structure, see `install`, inside the module at path `inside`.

    Paths are relative to that module; "" returns the complete structure.
    """
    if not inside:
        return {path: dict(entry) for path, entry in structure.items()}
    start = f"{inside}."
    inner: dict[str, dict[str, Any]] = {}
    for layer_path, entry in structure.items():
        if layer_path:
            projections = {
                path: _inside(start, described) for path, described in entry["projections"].items()
            }
            inner[layer_path.removeprefix(start)] = dict(entry) | {"projections": projections}
            continue
        inner[""] = {
            kind: {
                path.removeprefix(start): described
                for path, described in by_path.items()
                if path.startswith(start)
            }
            for kind, by_path in entry.items()
        }
    return inner


def _inside(start: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a projection's description with a relative path of the shared basis."""
    owner = described.get("down_at")
    return {**described, **({"down_at": owner.removeprefix(start)} if owner else {})}


def shared_names(network: nn.Module, kind: str) -> dict[str, str]:
    """Return further names of tensors that several projections share, with the first name of each.

    kind: "parameters" or "buffers".
    """
    first: dict[int, str] = {}
    named = getattr(network, f"named_{kind}")(remove_duplicate=False)
    first_names = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    return {
        name: first_name
        for name, first_name in first_names.items()
        if name != first_name and ".down." in name
    }


def _empty_module(
    network: PreTrainedModel, layer_path: str, described: Mapping[str, Any], native: Any
) -> nn.Module:
    if described["kind"] == "mlp":
        return CompressedMLP(described["activation"])
    if described["kind"] == "experts":
        identities = described.get("identities", 0)  # older models have none
        return CompressedExperts(described["activation"], described["count"], identities)
    if described["kind"] == "norm":
        return StreamNorm(described["width"], described["eps"])
    if described["kind"] == "embedding":
        shape = native.num_embeddings, described["size"]
        return resize_embedding(native, torch.empty(*shape, dtype=network.dtype))
    return attention_module(network, layer_path, described, described["layer"], native)
