"""Reading a decoder layer as values, and writing values back.

`write_layer` is the only place that changes a network. It replaces modules and never writes into a
tensor, so a clone that shares its tensors with the dense network leaves that one untouched. A
module whose values have not changed is kept.
"""

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..gates import CLAMPED
from ..layer import MLP, Attention, Experts, Layer, LowRank, Projection, RotaryChannel, roles
from ..modules.compressed import SIZES, CompressedAttention, CompressedExperts, CompressedMLP
from ..modules.install import attention_module, in_place_of
from ..modules.own_tables import own_table
from ..modules.projections import LowRankLinear, StoredLinear, projection_modules, read_projection
from ..precise import exact_device
from ..tensor_files import on_device
from .architecture import Architecture
from .architectures import architecture_of, decoder_layers, text_config
from .native import gate_rows, head_sizes, linear_of, rows_of
from .offload import present
from .stacked import separate


def projection_paths(row: Architecture, layer: nn.Module) -> dict[str, str]:
    """Paths of a layer's projections, native or compressed; a layer of experts has fewer."""
    paths = row.paths()
    if isinstance(layer.get_submodule(row.attention), CompressedAttention):
        paths |= {name: f"{row.attention}.{name}_proj" for name in "qkvo"}
    if isinstance(module_at(layer, row.mlp), CompressedMLP):
        paths |= {name: f"{row.mlp}.{name}_proj" for name in ("gate", "up", "down")}
    return {name: path for name, path in paths.items() if module_at(layer, path) is not None}


def module_at(layer: nn.Module, path: str) -> nn.Module | None:
    """The submodule at a path, None where there is none."""
    try:
        return layer.get_submodule(path)
    except AttributeError:
        return None


def rotary_frequencies(network: PreTrainedModel, head_size: int) -> Tensor | None:
    """Radians per position of every pair of a head, [head_size / 2], zero for unrotated pairs.

    From the rotary module of the language model, or the table that every attention keeps; None
    where there is neither, or more than one table.
    """
    layers = decoder_layers(network)
    language = network.get_submodule(architecture_of(network).layers.rpartition(".")[0])
    attention = layers[0].get_submodule(architecture_of(network).attention)
    for keeper in (attention, getattr(language, "rotary_emb", None)):
        if (kept := own_table(keeper)) is not None:
            sin, cos = kept[1].chunk(2)  # of position 1, at which no pair has turned by more than 1
            return nn.functional.pad(torch.atan2(sin, cos), (0, head_size // 2 - len(sin)))
    # one layer is enough: walking through all of them for every layer takes quadratic time
    places = (*(child for child in language.children() if child is not layers), layers[0])
    tables = (getattr(module, "inv_freq", None) for place in places for module in place.modules())
    table = next((table for table in tables if isinstance(table, Tensor)), None)
    return None if table is None else nn.functional.pad(table, (0, head_size // 2 - len(table)))


def read_layer(network: PreTrainedModel, index: int) -> Layer:
    """The values of decoder layer `index`, native or compressed; tensors are shared if possible."""
    module = decoder_layers(network)[index]
    with present(module):
        return _read(network, index, module)


def read_exact(network: PreTrainedModel, index: int) -> Layer:
    """As `read_layer`, for solvers: on a device that computes in float64."""
    layer: Layer = on_device(read_layer(network, index), exact_device(device_of(network)))
    return layer


def device_of(network: PreTrainedModel) -> torch.device:
    """Where the layers of a network compute."""
    device: torch.device = network.get_input_embeddings().weight.device
    return device


def layer_shapes(network: PreTrainedModel, index: int) -> Layer:
    """As `read_layer`, for its shapes alone: of an offloaded layer nothing is read from disk, and
    its tensors are on the device "meta".
    """
    return _read(network, index, decoder_layers(network)[index])


def _read(network: PreTrainedModel, index: int, module: nn.Module) -> Layer:
    row = architecture_of(network)
    paths = projection_paths(row, module)
    own = {name: module.get_submodule(path) for name, path in paths.items()}
    attention = module.get_submodule(row.attention)
    if isinstance(attention, CompressedAttention):
        values: dict[str, Any] = {name: _read_projection(own[name]) for name in "qkvo"}
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
        value = _read_kept(row, attention, own)
    else:
        value = _read_attention(network, row, attention, own)
    if "up" not in own:
        return Layer(index, value, None, _read_experts(network, module))
    fused = own.get("gate") is own["up"]
    mlp = {
        name: linear_of(own[name], gate_rows(own[name], name))
        if fused and name != "down"
        else _read_projection(own[name])
        for name in ("gate", "up", "down")
        if name in own
    }
    return Layer(index, value, MLP(**mlp, activation=_activation(network)))


def _activation(network: PreTrainedModel) -> str:
    row, config = architecture_of(network), text_config(network)
    if row.activation == CLAMPED:
        return f"{CLAMPED}:{config.swiglu_alpha}:{config.swiglu_limit}"
    return str(getattr(config, row.activation, row.activation))


def experts_path(row: Architecture) -> str:
    """The path of the routed experts within a layer, of a family that has them."""
    return f"{row.mlp}.experts".removeprefix(".")


def expert_modules(row: Architecture, layer: nn.Module) -> dict[str, nn.Module]:
    """The compressed experts of a layer and their projections, by path; none if they are native."""
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
    """The routed experts of a layer, where it has some: views of the stacked matrices."""
    row = architecture_of(network)
    native: Any = module_at(layer, experts_path(row)) if row.experts else None
    if native is None:
        return None
    activation, active = _activation(network), experts_per_token(layer.get_submodule(row.router))
    if isinstance(native, CompressedExperts):
        read = (
            {name: read_projection(getattr(mlp, f"{name}_proj")) for name in ("gate", "up", "down")}
            for mlp in native
        )
        return Experts(tuple(MLP(**one, activation=activation) for one in read), active)
    return Experts(separate(native, activation), active)


def experts_per_token(router: nn.Module) -> int:
    """To how many experts a router sends a token."""
    own: Any = router
    return int(own.top_k if hasattr(own, "top_k") else own.config.top_k_experts)


def _read_attention(
    network: PreTrainedModel, row: Architecture, attention: nn.Module, own: dict[str, nn.Module]
) -> Attention:
    sizes, config = head_sizes(network, attention), text_config(network)
    values: dict[str, Any] = {"o": _read_projection(own["o"])}
    for name in "qkv":
        rows = rows_of(row, sizes, name)
        whole = isinstance(own[name], LowRankLinear | StoredLinear) or (
            row.qkv == "apart" and torch.equal(rows, torch.arange(len(rows)))
        )
        values[name] = _read_projection(own[name]) if whole else linear_of(own[name], rows)
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
        kept=row.kept,
        window=None if row.window is None or not local else getattr(config, row.window),
    )


def _read_kept(row: Architecture, module: nn.Module, own: dict[str, nn.Module]) -> Attention:
    """Attention that stays the family's own."""
    attention: Any = module
    factors = {n: _read_projection(own[n]) for n in row.factors or () if n in own}
    if "kv_a" in factors:  # multi-head latent attention
        sizes: dict[str, int] = {
            "n_q": attention.num_heads,
            "n_kv": attention.num_heads,
            "head_size": attention.qk_head_dim,
            "v_size": attention.v_head_dim,
            "cache_size": attention.kv_lora_rank + attention.qk_rope_head_dim,
        }
    else:  # sizes of the heads may be those of a layer
        n_q = factors["q"].weight.shape[0] // attention.head_dim
        n_kv = n_q // attention.num_key_value_groups
        sizes = {
            "n_q": n_q,
            "n_kv": n_kv,
            "head_size": attention.head_dim,
            "v_size": attention.head_dim,
            "cache_size": 2 * n_kv * attention.head_dim if "k" in factors else 0,
        }
    return Attention(
        **roles(factors),
        **dict[str, Any](sizes),
        qk_size=sizes["head_size"],
        scale=_scale(row, attention),
        kept=True,
        factors=factors,
    )


def _scale(row: Architecture, attention: nn.Module) -> float:
    if row.scale is None:
        return 1.0
    return float(
        getattr(attention, row.scale) if isinstance(row.scale, str) else row.scale(attention)
    )


def _read_channel(attention: nn.Module) -> RotaryChannel | None:
    q, k = (getattr(attention, name, None) for name in ("q_channel", "k_channel"))
    if q is None or k is None:
        return None
    biases = (None if one.bias is None else one.bias.detach() for one in (q, k))
    return RotaryChannel(q.weight.detach(), k.weight.detach(), *biases)


def _read_projection(module: nn.Module) -> Projection:
    return linear_of(module) if isinstance(module, Conv1D) else read_projection(module)


def write_layer(network: PreTrainedModel, layer: Layer) -> None:
    """Replace the modules of a layer whose values have changed.

    Unchanged modules are kept bit for bit; a fused matrix stays fused unless a part of it changed.
    Tensors come from any device.
    """
    layer = on_device(layer, device_of(network))
    module = decoder_layers(network)[layer.index]
    with present(module):
        _write(network, layer, module)


def _write(network: PreTrainedModel, layer: Layer, module: nn.Module) -> None:
    row = architecture_of(network)
    now, values = read_layer(network, layer.index), layer.matrices()
    changed = {
        name for name, projection in values.items() if not _same(projection, now.matrices()[name])
    }
    native = module.get_submodule(row.attention)
    if _reshaped(now.attention, layer.attention) or (
        changed & set("qkv") and _has_layout_of_its_own(network, row, native)
    ):
        value = layer.attention
        sizes = {name: getattr(value, name) for name in SIZES} | {
            "selected_pairs": value.rotary_pairs is not None,
            "selected_heads": value.kept_heads is not None,
            "tables": value.tables,
        }
        place = f"{row.layers}.{layer.index}"
        module.set_submodule(
            row.attention, attention_module(network, place, sizes, layer.index, native).fill(value)
        )
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
        # all low-rank projections together: they may share a factor, which stays one module
        changed |= {name for name, projection in values.items() if isinstance(projection, LowRank)}
    if layer.experts is not None and not _same_experts(layer.experts, now.experts):
        module.set_submodule(experts_path(row), CompressedExperts.of(layer.experts))
    paths = projection_paths(row, module)
    for name, projection in projection_modules(
        {name: values[name] for name in values if name in changed}
    ).items():
        native = module.get_submodule(paths[name])
        module.set_submodule(paths[name], in_place_of(native, projection))


def _same_experts(a: Experts, b: Experts | None) -> bool:
    return b is not None and all(
        _same(p, other.matrices()[name])
        for own, other in zip(a.mlps, b.mlps, strict=True)
        for name, p in own.matrices().items()
    )


def _reshaped(now: Attention, then: Attention) -> bool:
    sizes = ((a.n_kv, a.qk_size, a.v_size, a.latent, a.summed) for a in (now, then))
    parts = ("rotary_pairs", "kept_heads", "channel")
    return len(set(sizes)) > 1 or not all(
        _equal(getattr(now, name), getattr(then, name)) for name in parts
    )


def _has_layout_of_its_own(
    network: PreTrainedModel, row: Architecture, attention: nn.Module
) -> bool:
    """Whether native queries, keys and values are laid out differently from `Attention`.

    They cannot be replaced one by one then.
    """
    if isinstance(attention, CompressedAttention) or row.kept:
        return False
    sizes = head_sizes(network, attention)
    partial = 0 < sizes.rotary < sizes.head_size
    return row.qkv != "apart" or partial or (bool(sizes.rotary) and row.pairs == "neighbours")


def changed_projections(
    network: PreTrainedModel, before: Layer, index: int
) -> dict[str, nn.Module]:
    """The projections of decoder layer `index` whose numbers differ from those of `before`, by
    name.

    before: the layer as it was in a network of the same family.
    """
    mine, theirs = read_layer(network, index).matrices(), before.matrices()
    layer = decoder_layers(network)[index]
    paths = projection_paths(architecture_of(network), layer)
    changed = {
        name: layer.get_submodule(paths[name])
        for name in mine
        if name not in theirs or not _same(mine[name], theirs[name])
    }
    # experts are exchanged all at once
    row = architecture_of(network)
    return changed | expert_modules(row, layer)


def _same(a: Any, b: Any) -> bool:
    """Whether two projections, or forms of a factor, hold the same numbers."""
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
    """A copy of the modules that shares all parameters and buffers."""
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    return copy.deepcopy(network, memo=shared)
