"""Stock export: a model that transformers already has. Where nothing but the MLPs has become
narrower, and evenly so, that is the model as it is; whole.py makes the others into one.

So is one whose residual stream was sliced with one rotation, where the family has RMSNorm and a
head size of its own: a config of that width, every norm with the weight sqrt(d / d') and eps d /
d', which makes a mean over d' columns one over the d there were.
"""

import copy
from bisect import bisect_right
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.pytorch_utils import Conv1D

from ..errors import InputError, with_article
from ..experts import STACKED
from ..history import StockFit
from ..layer import Layer
from ..models.architectures import architecture_of, decoder_layers, text_config
from ..models.config import CONFIG, auto_class, unfilled
from ..models.layers import layer_shapes, read_layer
from ..models.load import LoadedModel
from ..models.offload import stored_of
from ..models.structure import sliced_modules
from ..models.weights import read_json
from ..modules.compressed import CompressedAttention
from ..modules.projections import LowRankLinear, StoredLinear
from ..modules.sliced import StreamNorm, has_residual_matrices
from ..plan import RankPlan
from ..spectra import Slot
from .checkpoint import write_companions, write_json, write_weights
from .notes import Changes
from .whole import Stays, whole_model

SLICED_FIELDS = (
    "head_dim",
    "rms_norm_eps",
)  # config fields of the families that a sliced model can be one of
ODD_EXPERTS = f"experts whose width is no multiple of {STACKED}, which stacked ones need"
# fields of a config that give all layers of a family the biases that a method may add, and to which
# projections
BIASES = {"mlp_bias": ("down",), "attention_bias": "qkvo"}

TOKENIZER = "tokenizer_config.json"
ROPE_FIELDS = ("rope_theta", "partial_rotary_factor")  # beside `rope_parameters` before 5


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
        and not hasattr(text_config(model.network), "mlp_bias")
    ):
        reasons.append(
            f"the method adds a bias that {with_article(family)} MLP has no place for; a3 and "
            "modegpt add none"
        )
        fixable = False
    return StockFit(not reasons, tuple(reasons), _even_ranks(plan) if fixable else None)


def _is_compressed(network: PreTrainedModel) -> bool:
    """Whether a layer has modules that its family does not have."""
    return any(
        isinstance(module, CompressedAttention | LowRankLinear | StoredLinear)
        for module in decoder_layers(network).modules()
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
            "its residual stream is sliced, and head size, norms or embeddings of "
            f"{with_article(text.model_type)} model do not allow for that"
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


def write_stock(model: LoadedModel, folder: Path, shard: str) -> tuple[LoadedModel, Changes]:
    """Config, weights, tokenizer and generation config of a model in the modules of its family;
    returns it in those, and what had to be done.

    Raises InputError with the reasons for a model that has no such form.
    """
    family = text_config(model.network).model_type
    whole, changes = whole_model(model, Stays(), f"This model is no stock {family}")
    config, native = _stock_network(whole.network)
    config.architectures = [type(native).__name__]
    named = _stock_state(whole.network, native)
    state = {name: tensor.detach().cpu() for name, tensor in named.items()}
    write_weights(state, folder, shard)
    config.save_pretrained(folder)
    write_companions(model, folder)
    _say_as_before_5(folder)
    own, _ = changes.parameters
    stored = native.state_dict().keys()
    buffers = sum(one.numel() for name, one in native.named_buffers() if name in stored)
    numbers = sum(one.numel() for one in state.values()) - buffers
    return whole, replace(changes, parameters=(own, numbers))


def _say_as_before_5(folder: Path) -> None:
    """Adds what releases of transformers before 5 read, which other libraries run with: they know
    no `rope_parameters`, would take another base of rotary positions without a word, and have the
    class of tokenizers under its former name.
    """
    values = read_json(folder / CONFIG)
    text = values.get("text_config", values)
    rope = text.get("rope_parameters") or {}
    text |= {name: rope[name] for name in ROPE_FIELDS if name in rope}
    if rope.get("rope_type", "default") != "default":
        text["rope_scaling"] = rope
    write_json(folder / CONFIG, values)
    tokenizer = folder / TOKENIZER
    if tokenizer.is_file():
        said = read_json(tokenizer)
        if said.get("tokenizer_class") == "TokenizersBackend":
            write_json(tokenizer, said | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _stock_network(network: PreTrainedModel) -> tuple[Any, PreTrainedModel]:
    """The config and an empty network (on the meta device) of the stock architecture that a network
    with whole heads and even MLPs is one of.
    """
    row, config = architecture_of(network), copy.deepcopy(network.config)
    text = config.get_text_config()
    outside = sliced_modules(network)
    if outside and (reasons := _sliced(network)):
        raise _refused(network, "; ".join(reasons))
    layers = [layer_shapes(network, index) for index in range(len(decoder_layers(network)))]
    plain = {layer.mlp.down.weight.shape[1] for layer in layers if layer.mlp is not None}
    if row.width is not None and len(plain) == 1:  # else every layer has that of the family
        setattr(text, row.width, plain.pop())
    for field, names in BIASES.items():
        biased = any(p.bias is not None for layer in layers for p in layer.held(names))
        if biased and hasattr(text, field) and field not in row.requires:
            setattr(text, field, True)
    if outside:
        narrow = network.get_input_embeddings().embedding_dim
        norm: Any = outside[row.last_norm]
        text.head_dim = layers[0].attention.head_size
        text.hidden_size, text.rms_norm_eps = narrow, norm.eps * norm.width / narrow
    config.dtype = network.dtype
    with torch.device("meta"), unfilled():
        native = auto_class(config).from_config(
            config, dtype=network.dtype, attn_implementation=row.kernel
        )
    if any(_loses_biases(layer, layer_shapes(native, layer.index)) for layer in layers):
        own = with_article(text.model_type)
        raise _refused(network, f"biases that {own} layer has no place for")
    return config, native


def _loses_biases(own: Layer, there: Layer) -> bool:
    """Whether a projection has a bias that it has not in another layer."""
    others = there.matrices()
    return any(p.bias is not None and others[n].bias is None for n, p in own.matrices().items())


def _refused(network: PreTrainedModel, reason: str) -> InputError:
    family = text_config(network).model_type
    return InputError(f"This model is no stock {family}: {reason}. Export it with its code.")


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
        elif row.gate == row.up == place:
            prefix = parent.removesuffix(row.up) + row.mlp
            state[name] = torch.cat(
                [have[f"{prefix}.{part}_proj.{leaf}"] for part in ("gate", "up")]
            )
        elif isinstance(own := network.get_submodule(parent), StreamNorm):
            state[name] = torch.full_like(wanted, (own.width / len(wanted)) ** 0.5, device="cpu")
        else:
            assert leaf == "bias", name  # all else is in the network
            state[name] = torch.zeros(wanted.shape, dtype=wanted.dtype)
    if not row.experts:
        return state
    # under the names that checkpoints of the family have: other programs know no stacked experts
    named = revert_weight_conversion(native, state)
    return {name: tensor.contiguous() for name, tensor in named.items()}
