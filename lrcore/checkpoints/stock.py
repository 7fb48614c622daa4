"""Stock export: where nothing but the MLPs has become narrower, and evenly so, the model is one
that transformers already has.

So is one whose residual stream was sliced with one rotation, where the family has RMSNorm and a
head size of its own: a config of that width, every norm with the weight sqrt(d / d') and eps d /
d', which makes a mean over d' columns one over the d there were.
"""

import copy
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from ..errors import InputError
from ..experts import STACKED
from ..history import StockFit
from ..layer import ACROSS, LATENT_MATRICES, Layer, Linear
from ..models.architectures import architecture_of, decoder_layers, text_config
from ..models.config import auto_class, unfilled
from ..models.layers import experts_path, read_layer
from ..models.load import LoadedModel
from ..models.offload import stored_of
from ..models.stacked import stacked
from ..models.structure import sliced_modules
from ..modules.compressed import CompressedAttention, CompressedExperts
from ..modules.projections import LowRankLinear, StoredLinear
from ..modules.sliced import StreamNorm, has_residual_matrices
from ..plan import RankPlan
from ..spectra import Slot
from .checkpoint import SHARD, write_companions, write_weights

SLICED_FIELDS = (
    "head_dim",
    "rms_norm_eps",
)  # config fields of the families that a sliced model can be one of
ODD_EXPERTS = f"experts whose width is no multiple of {STACKED}, which stacked ones need"
BIASES = {
    "llama": "mlp_bias"
}  # config fields that give a family's MLP the biases that a method may add


def stock_fit(model: LoadedModel, plan: RankPlan) -> StockFit:
    """Whether the model that a plan makes of a dense one can be written with no code of ours, and
    which ranks would make it so.

    The ranks suggested keep QK and OV whole and give all MLPs one width, the largest with no more
    parameters than the plan has; where the MLPs alone cannot save as much, the smallest.
    """
    family = text_config(model.network).model_type
    mlp = {slot: s.cost for slot, s in plan.spectra.items() if slot[1] == "mlp"}
    kinds = {cost.copies > 1 for cost in mlp.values()}  # experts, and MLPs of layers without any
    structural = structural_reasons(model.network)
    if _is_compressed(model.network):
        structural.append("its layers were narrowed or factored before")
    reasons = [*structural]
    if not mlp:
        reasons.append(
            "the method factors matrices, which no stock architecture has; a method on components "
            "would do"
        )
    changed = sorted(
        {
            name
            for (_, name), rank in plan.ranks.items()
            if name != "mlp" and rank < plan.spectra[_, name].cost.full
        }
    )
    if changed:
        reasons.append(f"{', '.join(changed)} below full rank")
    if len({(cost.copies > 1, plan.ranks[slot]) for slot, cost in mlp.items()}) > len(kinds):
        reasons.append("MLPs of different widths")
    if any(plan.ranks[slot] % STACKED for slot, cost in mlp.items() if cost.copies > 1):
        reasons.append(ODD_EXPERTS)
    fixable = not structural and len(mlp) == plan.shape.layers and len(kinds) == 1
    if (
        mlp
        and any(cost.fixed for cost in mlp.values())
        and not _has_biases(model.network)
        and family not in BIASES
    ):
        reasons.append(
            f"the method adds a bias that a {family} MLP has no place for; a3 and modegpt add none"
        )
        fixable = False
    return StockFit(not reasons, tuple(reasons), _even_ranks(plan) if fixable else None)


def _is_compressed(network: PreTrainedModel) -> bool:
    """Whether a layer has modules that its family does not have."""
    return any(
        isinstance(module, CompressedAttention | LowRankLinear | StoredLinear)
        for module in decoder_layers(network).modules()
    )


def _has_its_experts(network: PreTrainedModel) -> bool:
    """Whether a network of a family with experts has MLPs as wide as its config says: pruned of
    experts or layers, it is a stock one whatever its widths follow from.
    """
    if not architecture_of(network).experts or sliced_modules(network):
        return False
    layers = decoder_layers(network)
    width = text_config(network).intermediate_size
    mlps = (read_layer(network, index).mlp for index in range(len(layers)))
    return all(mlp is None or len(mlp.up.weight) == width for mlp in mlps) and not any(
        isinstance(module, CompressedExperts) for module in layers.modules()
    )


def structural_reasons(network: PreTrainedModel) -> list[str]:
    """Why no ranks make a network of this family and width a stock one; empty where some do."""
    family, row = text_config(network).model_type, architecture_of(network)
    if sliced_modules(network):
        return _sliced(network)
    if row.experts and not row.expert_width:
        return [f"the width of experts that every token of {family} passes follows from the others"]
    if isinstance(getattr(text_config(network), "intermediate_size", None), list):
        return [f"the layers of {family} have MLP widths of their own"]
    return (
        []
        if row.width or row.expert_width
        else [f"the MLP width of {family} follows from the hidden size"]
    )


def _sliced(network: PreTrainedModel) -> list[str]:
    """Why a sliced network is no stock one."""
    text, embedding = text_config(network), network.get_input_embeddings()
    if has_residual_matrices(network):
        return [
            "its residual stream is sliced in more than one basis, with matrices in between that "
            "no family has"
        ]
    if type(embedding) is not torch.nn.Embedding or not all(
        hasattr(type(text)(), name) for name in SLICED_FIELDS
    ):
        return [
            "its residual stream is sliced, and head size, norms or embeddings of a "
            f"{text.model_type} model do not allow for that"
        ]
    heads, width = text.num_attention_heads, embedding.embedding_dim
    return (
        [
            f"its stream is {width} wide, no multiple of its {heads} heads: slice it with "
            f"multiple {heads}"
        ]
        if width % heads
        else []
    )


def _has_biases(network: PreTrainedModel) -> bool:
    return all(down.bias is not None for down in read_layer(network, 0).held(("down",)))


def _even_ranks(plan: RankPlan) -> dict[Slot, int]:
    full = {slot: s.cost.full for slot, s in plan.spectra.items()}
    costs = {slot: s.cost for slot, s in plan.spectra.items()}
    target = sum(cost.parameters(plan.ranks[slot]) for slot, cost in costs.items())
    target -= sum(cost.dense for slot, cost in costs.items() if slot[1] != "mlp")
    mlp = [cost for slot, cost in costs.items() if slot[1] == "mlp"]
    width = bisect_right(
        range(1, mlp[0].full + 1), target, key=lambda r: sum(cost.parameters(r) for cost in mlp)
    )
    step = STACKED if mlp[0].copies > 1 else 1
    return full | {slot: max(width - width % step, step) for slot in full if slot[1] == "mlp"}


def write_stock(model: LoadedModel, folder: Path, shard: str = SHARD) -> None:
    """Config, weights, tokenizer and generation config of a model that qualifies.

    Raises InputError with the reasons for another.
    """
    config, native = _stock_network(model.network)
    config.architectures = [type(native).__name__]
    state = {
        name: tensor.detach().cpu() for name, tensor in _stock_state(model.network, native).items()
    }
    write_weights(state, folder, shard)
    config.save_pretrained(folder)
    write_companions(model, folder)


def _stock_network(network: PreTrainedModel) -> tuple[Any, PreTrainedModel]:
    """The config and an empty network (on the meta device) of the stock architecture that a
    compressed network is one of.
    """
    row, config = architecture_of(network), copy.deepcopy(network.config)
    text = config.get_text_config()
    family = text.model_type
    layers = [_facts(read_layer(network, index)) for index in range(len(decoder_layers(network)))]
    reasons = [] if _has_its_experts(network) else structural_reasons(network)
    if any(layer.factored for layer in layers):
        reasons.append("factored or quantised matrices")
    if any(layer.narrowed for layer in layers):
        reasons.append("narrower attention heads, or fewer")
    plain = {width for layer in layers for width in layer.widths}
    routed = {width for layer in layers for width in layer.expert_widths}
    for widths in (plain, routed):
        if len(widths) > 1:
            reasons.append(f"MLPs of different widths ({min(widths)} to {max(widths)})")
    if any(width % STACKED for width in routed):
        reasons.append(ODD_EXPERTS)
    if not reasons:
        for field, widths in ((row.width, plain), (row.expert_width, routed)):
            if field is not None and widths:
                setattr(text, field, widths.pop())
        if family in BIASES and any(layer.biased for layer in layers):
            setattr(text, BIASES[family], True)
        if outside := sliced_modules(network):
            narrow = network.get_input_embeddings().embedding_dim
            norm: Any = outside[row.last_norm]
            text.head_dim = layers[0].head_size
            text.hidden_size, text.rms_norm_eps = narrow, norm.eps * norm.width / narrow
        config.dtype = network.dtype
        with torch.device("meta"), unfilled():
            native = auto_class(config).from_config(
                config, dtype=network.dtype, attn_implementation=row.kernel
            )
        if any(layer.biased for layer in layers) and not _has_biases(native):
            reasons.append(f"biases that a {family} layer has no place for")
    if reasons:
        raise InputError(
            f"This model is no stock {family}: {'; '.join(reasons)}. Export it with its code, or "
            "choose even MLP ranks only."
        )
    return config, native


class _Facts(NamedTuple):
    """What decides whether a layer is a stock one.

    widths: of its MLP, none without a dense one; expert_widths: of its routed experts. biased: of
    its down projections.
    """

    factored: bool
    narrowed: bool
    head_size: int
    widths: frozenset[int]
    expert_widths: frozenset[int]
    biased: bool


def _facts(layer: Layer) -> _Facts:
    a, downs = layer.attention, layer.held(("down",))
    factored = any(not isinstance(p, Linear) for p in layer.held({*ACROSS, *LATENT_MATRICES}))
    sizes = (a.qk_size, a.v_size) != (a.head_size, a.head_size)
    narrowed = (sizes or a.kept_heads is not None) and not a.kept
    widths = frozenset(down.weight.shape[1] for down in downs if isinstance(down, Linear))
    biased = any(down.bias is not None for down in downs)
    empty = frozenset[int]()
    own, routed = (empty, widths) if layer.mlp is None else (widths, empty)
    return _Facts(factored, narrowed, a.head_size, own, routed, biased)


def _stock_state(network: PreTrainedModel, native: PreTrainedModel) -> dict[str, Tensor]:
    """The weights under the names and in the shapes of the stock network; tied ones once; biases
    that are new are zero.
    """
    row, state = architecture_of(network), {}
    have = network.state_dict() | {
        name: stored.map() for name, stored in stored_of(network).items()
    }
    tied = native.all_tied_weights_keys
    for name, wanted in native.state_dict().items():
        if name in tied:
            continue
        parent, _, leaf = name.rpartition(".")
        place, module = (
            parent.removeprefix(f"{row.layers}.").partition(".")[2],
            native.get_submodule(parent),
        )
        if name in have:
            transposed = (
                isinstance(module, Conv1D)
                and leaf == "weight"
                and isinstance(network.get_submodule(parent), nn.Linear)
            )
            state[name] = (have[name].T if transposed else have[name]).contiguous()
        elif row.experts and place == experts_path(row):
            experts = [_beneath(have, f"{parent}.{number}.") for number in range(len(wanted))]
            state[name] = stacked(module, leaf, experts)
        elif row.gate == row.up == place:
            prefix = parent.removesuffix(row.up) + row.mlp
            state[name] = torch.cat(
                [have[f"{prefix}.{part}_proj.{leaf}"] for part in ("gate", "up")]
            )
        elif isinstance(own := network.get_submodule(parent), StreamNorm):
            state[name] = torch.full_like(wanted, (own.width / len(wanted)) ** 0.5, device="cpu")
        else:
            state[name] = torch.zeros(wanted.shape, dtype=wanted.dtype)
    if not row.experts:
        return state
    # under the names that checkpoints of the family have: other programs know no stacked experts
    named = revert_weight_conversion(native, state)
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _beneath(have: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by what follows."""
    return {name.removeprefix(prefix): t for name, t in have.items() if name.startswith(prefix)}
