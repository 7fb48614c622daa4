"""Reading of decoder layers as values, and writing of changed values.

`write_layer` is the only function that changes a network. It replaces modules and never writes into
a tensor, so clones that share tensors with the dense network leave it unchanged. Modules with
unchanged values are kept.
"""

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..layers.layer import (
    CLAMPED,
    LIMITED,
    MLP,
    Attention,
    Experts,
    Layer,
    LowRank,
    Projection,
    RotaryChannel,
    projection_roles,
)
from ..layers.linalg import float64_device
from ..layers.modules.compressed import SIZES, CompressedAttention, CompressedExperts, CompressedMLP
from ..layers.modules.install import attention_module, with_family_class
from ..layers.modules.projections import (
    LowRankLinear,
    StoredLinear,
    projection_modules,
    read_projection,
)
from ..layers.modules.rotary import stored_table
from ..system.tensor_files import on_device
from .architecture import Architecture, module_at
from .architectures import architecture_of, decoder_layers, text_config
from .native import (
    gate_rows,
    head_sizes,
    identities_of,
    native_linear,
    rows_of,
    separate_experts,
)
from .offload import present


def projection_paths(row: Architecture, layer: nn.Module) -> dict[str, str]:
    """Return the paths of a layer's projections; a layer of experts lacks gate, up and down."""
    row = row.of_layer(layer)
    paths = row.paths()
    if isinstance(layer.get_submodule(row.attention), CompressedAttention):
        paths |= {name: f"{row.attention}.{name}_proj" for name in "qkvo"}
    if isinstance(module_at(layer, row.mlp), CompressedMLP):
        paths |= {name: f"{row.mlp}.{name}_proj" for name in ("gate", "up", "down")}
    return {name: path for name, path in paths.items() if module_at(layer, path) is not None}


def rotary_frequencies(network: PreTrainedModel, head_size: int) -> Tensor | None:
    """Return radians per position of each pair of a head, [head_size / 2]; 0 for unrotated pairs.

    The values come from the rotary module of the language model or from the table in every
    attention module. Returns None if there is neither, or more than one table.
    """
    layers = decoder_layers(network)
    language = network.get_submodule(architecture_of(network).layers.rpartition(".")[0])
    attention = module_at(layers[0], architecture_of(network).attention)
    for module in (attention, getattr(language, "rotary_emb", None)):
        if (table := stored_table(module)) is not None:
            sin, cos = table[1].chunk(2)  # position 1, where no pair has turned by more than 1
            return nn.functional.pad(torch.atan2(sin, cos), (0, head_size // 2 - len(sin)))
    # Only the first layer is searched: searching all layers for each layer takes quadratic time.
    parents = (*(child for child in language.children() if child is not layers), layers[0])
    tables = (getattr(m, "inv_freq", None) for parent in parents for m in parent.modules())
    table = next((table for table in tables if isinstance(table, Tensor)), None)
    return None if table is None else nn.functional.pad(table, (0, head_size // 2 - len(table)))


def read_layer(network: PreTrainedModel, index: int) -> Layer:
    """Return the values of a decoder layer, native or compressed; tensors are shared if
    possible."""
    module = decoder_layers(network)[index]
    with present(module):
        return _read(network, index, module)


def read_exact(network: PreTrainedModel, index: int) -> Layer:
    """Return the values of a decoder layer on a device with float64, for solvers."""
    layer: Layer = on_device(read_layer(network, index), float64_device(device_of(network)))
    return layer


def device_of(network: PreTrainedModel) -> torch.device:
    """Return the device on which the layers of a network compute."""
    device: torch.device = network.get_input_embeddings().weight.device
    return device


def layer_shapes(network: PreTrainedModel, index: int) -> Layer:
    """Return the values of a decoder layer for their shapes only.

    Offloaded tensors are not read from disk; they are on the device "meta".
    """
    return _read(network, index, decoder_layers(network)[index])


def _read(network: PreTrainedModel, index: int, module: nn.Module) -> Layer:
    row = architecture_of(network).of_layer(module)
    paths = projection_paths(row, module)
    projections = {name: module.get_submodule(path) for name, path in paths.items()}
    attention = module.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        values: dict[str, Any] = {name: _read_projection(projections[name]) for name in "qkvo"}
        rotary = attention.position == "rotary"
        sizes = {name: getattr(attention, name) for name in SIZES}
        value = Attention(
            **values,
            **sizes,
            rotary_pairs=attention.rotary_pairs,
            kept_heads=attention.kept_heads,
            frequencies=rotary_frequencies(network, attention.head_size) if rotary else None,
            tables=attention.tables,
            channel=_read_channel(attention),
        )
    elif row.factors is not None:
        value = _read_kept(row, attention, projections)
    else:
        value = _read_attention(network, row, attention, projections)
    if "up" not in projections:
        return Layer(index, value, None, _read_experts(network, module))
    fused = projections.get("gate") is projections["up"]
    mlp = {
        name: native_linear(projections[name], gate_rows(projections[name], name))
        if fused and name != "down"
        else _read_projection(projections[name])
        for name in ("gate", "up", "down")
        if name in projections
    }
    return Layer(index, value, MLP(**mlp, activation=_activation(network, row.activation)))


def _activation(network: PreTrainedModel, name: str) -> str:
    """Return an activation by its name in a row."""
    config = text_config(network)
    if name == CLAMPED:
        return f"{CLAMPED}:{config.swiglu_alpha}:{config.swiglu_limit}"
    if name == LIMITED:
        return f"{LIMITED}:{config.hidden_act}:{config.swiglu_limit}"
    return str(getattr(config, name, name))


def experts_path(row: Architecture) -> str:
    """Return the path of the routed experts in a layer; the family must have experts."""
    return f"{row.mlp}.experts".removeprefix(".")


def expert_modules(row: Architecture, layer: nn.Module) -> dict[str, nn.Module]:
    """Return the compressed experts of a layer and their projections by path; {} if native."""
    experts = module_at(layer, experts_path(row)) if row.experts else None
    if not isinstance(experts, CompressedExperts):
        return {}
    inner = {
        f"{experts_path(row)}.{number}.{name}": projection
        for number, mlp in enumerate(experts)
        for name, projection in mlp.named_children()
        if name.endswith("_proj")
    }
    return {experts_path(row): experts} | inner


def _read_experts(network: PreTrainedModel, layer: nn.Module) -> Experts | None:
    """Return the routed experts of a layer as views of the stacked matrices, or None."""
    row = architecture_of(network)
    native: Any = module_at(layer, experts_path(row)) if row.experts else None
    if native is None:
        return None
    activation = _activation(network, row.expert_activation or row.activation)
    active = experts_per_token(layer.get_submodule(row.router))
    if isinstance(native, CompressedExperts):
        read = (
            {
                name: read_projection(getattr(mlp, f"{name}_proj"))
                for name in ("gate", "up", "down")
                if getattr(mlp, f"{name}_proj") is not None
            }
            for mlp in native
        )
        mlps = tuple(MLP(**parts, activation=activation) for parts in read)
        return Experts(mlps, active, native.identities)
    return Experts(separate_experts(native, activation), active, identities_of(native))


def experts_per_token(router: nn.Module) -> int:
    """Return the number of experts that a router selects per token."""
    module: Any = router
    return int(module.top_k if hasattr(module, "top_k") else module.config.top_k_experts)


def _read_attention(
    network: PreTrainedModel,
    row: Architecture,
    attention: nn.Module,
    projections: dict[str, nn.Module],
) -> Attention:
    sizes, config = head_sizes(network, attention), text_config(network)
    values: dict[str, Any] = {"o": _read_projection(projections["o"])}
    for name in "qkv":
        rows, projection = rows_of(row, sizes, name), projections[name]
        all_rows = isinstance(projection, LowRankLinear | StoredLinear) or (
            row.qkv == "separate" and torch.equal(rows, torch.arange(len(rows)))
        )
        values[name] = _read_projection(projection) if all_rows else native_linear(projection, rows)
    local = row.window is not None and attention.attention_type == "local"
    return Attention(
        **values,
        n_q=sizes.n_q,
        n_kv=sizes.n_kv,
        head_size=sizes.head_size,
        qk_size=sizes.head_size,
        v_size=sizes.head_size,
        scale=_scale(row, attention),
        position="rotary" if sizes.rotary else "none",
        frequencies=rotary_frequencies(network, sizes.head_size) if sizes.rotary else None,
        tables=row.tables,
        qk_norm=None if row.norms is None else row.norm_over,
        softcap=None if row.softcap is None else getattr(config, row.softcap),
        is_native=row.native_attention,
        window=None if row.window is None or not local else getattr(config, row.window),
    )


def _read_kept(
    row: Architecture, module: nn.Module, projections: dict[str, nn.Module]
) -> Attention:
    """Read an attention module of the family, which is never replaced."""
    attention: Any = module
    sizes: dict[str, int]
    factors = {n: _read_projection(projections[n]) for n in row.factors or () if n in projections}
    if row.is_inferred or not row.has_heads:
        sizes = dict.fromkeys(("n_q", "n_kv", "head_size", "v_size"), 1)
        sizes["cache_size"] = _inferred_cache(attention) if row.is_inferred else 0
    elif "kv_a" in factors:  # multi-head latent attention
        sizes = {
            "n_q": attention.num_heads,
            "n_kv": attention.num_heads,
            "head_size": attention.qk_head_dim,
            "v_size": attention.v_head_dim,
            "cache_size": attention.kv_lora_rank + attention.qk_rope_head_dim,
        }
        sizes["cache_size"] *= sum(name.endswith("kv_a") for name in factors)  # attentions
        if getattr(attention, "indexer", None) is not None:
            sizes["cache_size"] += attention.indexer.head_dim
    else:  # the head size may differ by layer
        group = attention.num_key_value_groups
        # queries may carry a gate, so the heads are counted by the keys
        rows = group * factors["k"].weight.shape[0] if "k" in factors else len(factors["q"].weight)
        n_q = rows // attention.head_dim
        n_kv = n_q // group
        v_size = getattr(attention, "v_head_dim", attention.head_dim)
        sizes = {
            "n_q": n_q,
            "n_kv": n_kv,
            "head_size": attention.head_dim,
            "v_size": v_size,
            "cache_size": n_kv * (attention.head_dim + v_size) if "k" in factors else 0,
        }
    return Attention(
        **projection_roles(factors),
        **dict[str, Any](sizes),
        qk_size=sizes["head_size"],
        scale=_scale(row, attention),
        qk_norm=None if row.norms is None else row.norm_over,
        is_native=True,
        factors=factors,
    )


def _inferred_cache(layer: nn.Module) -> int:
    """Return the number of keys and values per token, or latents, that a layer's attention caches.

    They are the outputs of projections with these names, also of a block that several layers share;
    linear attention is not marked as causal.
    """
    modules: dict[str, Any] = dict(layer.named_modules())
    split = {path: path.rpartition(".") for path in modules}
    return sum(
        int(modules[path].out_features)
        for path, (parent, _, leaf) in split.items()
        if leaf in ("k_proj", "v_proj", "kv_a_proj_with_mqa")
        and hasattr(modules[parent], "is_causal")
    )


def _scale(row: Architecture, attention: nn.Module) -> float:
    if row.scale is None:
        return 1.0
    return float(
        getattr(attention, row.scale) if isinstance(row.scale, str) else row.scale(attention)
    )


def output_rows(network: PreTrainedModel, index: int) -> dict[str, Tensor | None]:
    """Return, by projection of a dense layer, the entries of its module's output that belong to it.

    Indices [out] in the order of the rows of `read_layer`; None: all entries in their order.
    """
    layer = decoder_layers(network)[index]
    row = architecture_of(network).of_layer(layer)
    paths = projection_paths(row, layer)
    rows: dict[str, Tensor | None] = dict.fromkeys(paths)
    attention = layer.get_submodule(row.attention)
    if row.factors is None and not isinstance(attention, CompressedAttention):
        sizes = head_sizes(network, attention)
        rows |= {name: rows_of(row, sizes, name) for name in "qkv"}
    if "gate" in paths and paths["gate"] == paths["up"]:
        fused = layer.get_submodule(paths["up"])
        rows |= {"gate": gate_rows(fused, "gate"), "up": gate_rows(fused, "up")}
    return rows


def with_separate_experts(network: PreTrainedModel) -> PreTrainedModel:
    """Return a clone in which the routed experts of all layers are separate modules."""
    network, row = clone(network), architecture_of(network)
    for index, layer in enumerate(decoder_layers(network)):
        experts = read_layer(network, index).experts
        if experts is not None and not expert_modules(row, layer):
            layer.set_submodule(experts_path(row), CompressedExperts.of(experts))
    return network


def _read_channel(attention: nn.Module) -> RotaryChannel | None:
    q, k = (getattr(attention, name, None) for name in ("q_channel", "k_channel"))
    if q is None or k is None:
        return None
    biases = (None if module.bias is None else module.bias.detach() for module in (q, k))
    return RotaryChannel(q.weight.detach(), k.weight.detach(), *biases)


def _read_projection(module: nn.Module) -> Projection:
    return native_linear(module) if isinstance(module, Conv1D) else read_projection(module)


def write_layer(network: PreTrainedModel, layer: Layer) -> None:
    """Replace the modules of a layer whose values have changed.

    Unchanged modules are kept bit for bit; a fused matrix stays fused unless a part of it changed.
    The tensors may be on any device.
    """
    layer = on_device(layer, device_of(network))
    module = decoder_layers(network)[layer.index]
    with present(module):
        _write(network, layer, module)


def _write(network: PreTrainedModel, layer: Layer, module: nn.Module) -> None:
    row = architecture_of(network).of_layer(module)
    current, values = read_layer(network, layer.index), layer.matrices()
    changed = {
        name
        for name, projection in values.items()
        if not _same(projection, current.matrices()[name])
    }
    native = module.get_submodule(row.attention)
    if _reshaped(current.attention, layer.attention) or (
        changed & set("qkv") and _has_layout_of_its_own(network, row, native)
    ):
        value = layer.attention
        sizes = {name: getattr(value, name) for name in SIZES} | {
            "selected_pairs": value.rotary_pairs is not None,
            "selected_heads": value.kept_heads is not None,
            "tables": value.tables,
        }
        path = f"{row.layers}.{layer.index}"
        attention = attention_module(network, path, sizes, layer.index, native)
        module.set_submodule(row.attention, attention.fill(value))
        changed -= set("qkvo")
    if (
        changed & {"gate", "up"}
        and row.gate == row.up
        and not isinstance(module.get_submodule(row.mlp), CompressedMLP)
    ):
        assert layer.mlp is not None  # its gate or up has changed
        module.set_submodule(row.mlp, CompressedMLP.of(layer.mlp))
        changed -= {"gate", "up", "down"}
    if any(isinstance(values[name], LowRank) for name in changed):
        # Low-rank projections may share a factor, so all of them are replaced together.
        changed |= {name for name, projection in values.items() if isinstance(projection, LowRank)}
    if layer.experts is not None and not _same_experts(layer.experts, current.experts):
        module.set_submodule(experts_path(row), CompressedExperts.of(layer.experts))
    paths = projection_paths(row, module)
    for name, projection in projection_modules(
        {name: values[name] for name in values if name in changed}
    ).items():
        native = module.get_submodule(paths[name])
        module.set_submodule(paths[name], with_family_class(native, projection))


def _same_experts(a: Experts, b: Experts | None) -> bool:
    return b is not None and all(
        _same(p, mlp_b.matrices()[name])
        for mlp_a, mlp_b in zip(a.mlps, b.mlps, strict=True)
        for name, p in mlp_a.matrices().items()
    )


def _reshaped(before: Attention, after: Attention) -> bool:
    sizes = ((a.n_kv, a.qk_size, a.v_size, a.latent, a.summed) for a in (before, after))
    parts = ("rotary_pairs", "kept_heads", "channel")
    return len(set(sizes)) > 1 or not all(
        _equal(getattr(before, name), getattr(after, name)) for name in parts
    )


def _has_layout_of_its_own(
    network: PreTrainedModel, row: Architecture, attention: nn.Module
) -> bool:
    """Return True if native queries, keys and values differ from `Attention` in row layout.

    They can then only be replaced together.
    """
    if isinstance(attention, CompressedAttention) or row.native_attention:
        return False
    sizes = head_sizes(network, attention)
    partial = 0 < sizes.rotary < sizes.head_size
    return row.qkv != "separate" or partial or (bool(sizes.rotary) and row.pairs == "interleaved")


def changed_projections(
    network: PreTrainedModel, before: Layer, index: int
) -> dict[str, nn.Module]:
    """Return the projections of a decoder layer whose numbers differ from `before`, by name.

    before: the layer in another network of the same family.
    """
    matrices, matrices_before = read_layer(network, index).matrices(), before.matrices()
    layer = decoder_layers(network)[index]
    paths = projection_paths(architecture_of(network), layer)
    changed = {
        name: layer.get_submodule(paths[name])
        for name in matrices
        if name not in matrices_before or not _same(matrices[name], matrices_before[name])
    }
    # Compressed experts are listed completely.
    row = architecture_of(network)
    return changed | expert_modules(row, layer)


def _same(a: Any, b: Any) -> bool:
    """Return True if two projections, or stored forms of a factor, hold the same numbers."""
    return type(a) is type(b) and all(
        _equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
    )


def _equal(a: Any, b: Any) -> bool:
    if is_dataclass(a):
        return _same(a, b)
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return (a.data_ptr(), a.stride()) == (b.data_ptr(), b.stride()) or torch.equal(a, b)


def clone(network: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of the modules that shares all parameters and buffers."""
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    return copy.deepcopy(network, memo=shared)
