"""Random tiny models of all families, with random sizes, heads, layers and biases."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from tiny_models import CONFIGS, copy_tokenizer, noisy

import lrcore
from lrcore.compression.evidence.measure import evidence_of
from lrcore.layers.account import SizeAndCost
from lrcore.methods import METHODS
from lrcore.models.architectures import ARCHITECTURES
from lrcore.models.hybrid_families import HYBRIDS
from lrcore.models.model_size import count_account
from lrcore.ranks.policies import POLICIES
from lrcore.recipes.recipe import BUDGETS, CALIBRATION_MODES, REFIT, ROUNDING

VOCABULARY = 300  # of all tiny models
# Names of the same field in different families.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WIDTH = ("hidden_size", "n_embd", "d_model")
INNER = (
    "intermediate_size",
    "intermediate_size_mlp",
    "ffn_dim",
    "n_inner",
    "moe_intermediate_size",
)
MULTIPLES = (
    "internlm3",
    "exaone",
    "cwm",
    "jais2",
    "arcee",
    "llama",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
)  # the width is a multiple of the number of heads
# A family with few possible sizes below: sliding windows with twice the key heads, and rotary
# positions on a third of a head
NOT_RANDOM = {"mimo_v2_flash"}
LAYER_KINDS = {"mlp_layer_types": ("dense", "sparse"), "indexer_types": ("full", "shared")}
SQUARE = ("helium",)  # the width equals that of all heads
WITH_BIASES = ("llama", "smollm3")  # `attention_bias`, `mlp_bias`
# Sizes of hybrids
MIXED_WIDTHS = ("shared_intermediate_size", "shared_expert_intermediate_size", "mamba_d_state")
LINEAR_SIZES = {"linear_key_head_dim", "linear_value_head_dim"}
UNTIED = ("nemotron_h", "kimi_linear", "bailing_hybrid")  # transformers ties no weights of these
ORDERS = (torch.uint8, torch.int16, torch.int32, torch.int64)  # types of permutations
SERVING = [name for name in POLICIES if not evidence_of(name).one_budget]


@st.composite
def layers_that_depend_on_others(draw: st.DrawFn, family: str, kinds: list[str]) -> dict[str, Any]:
    """Draw the embeddings of single layers, and the number of last layers that share keys of
    earlier ones.
    """
    if family == "gemma4_text":
        kinds = [*kinds[:-1], "full_attention"]  # as required by the config
    possible = [n for n in range(len(kinds)) if set(kinds[len(kinds) - n :]) <= set(kinds[:-n])]
    # without embeddings, Gemma 4 shares no keys
    size = draw(st.sampled_from((4, 8) if family == "gemma3n_text" else (0, 4, 8)))
    fields: dict[str, Any] = {
        "hidden_size_per_layer_input": size,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_kv_shared_layers": draw(st.sampled_from(possible)) if size else 0,
    }
    if family == "gemma4_text":
        return fields | {
            "use_double_wide_mlp": draw(st.booleans()),
            "enable_moe_block": draw(st.booleans()),
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": draw(st.integers(4, 64)),
        }
    return fields | {
        "intermediate_size": [draw(st.integers(4, 64)) for _ in kinds],
        "activation_sparsity_pattern": [draw(st.sampled_from((0.0, 0.5))) for _ in kinds],
        "altup_num_inputs": draw(st.integers(1, 4)),
    }


@st.composite
def hybrid_fields(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """Draw the layers of a hybrid, and the sizes of its MLPs, experts and linear attention.

    The width and the heads are those of the tiny model: the sizes of a mixer depend on them.
    """
    fields = dict(CONFIGS[family])
    layers = draw(st.integers(2, 4))
    if "num_hidden_layers" in fields:
        fields["num_hidden_layers"] = layers
    for name in sorted({"layer_types", "layers_block_type", "mlp_layer_types"} & fields.keys()):
        kinds, others = fields[name], st.sampled_from(fields[name])
        further = draw(st.lists(others, min_size=layers - 2, max_size=layers - 2))
        # transformers has no cache without a layer of attention
        second = "full_attention" if "full_attention" in kinds else kinds[-1]
        fields[name] = draw(st.permutations([kinds[0], second, *further]))
    for name in sorted({"attn_layer_offset", "expert_layer_offset"} & fields.keys()):
        fields[name] = draw(st.integers(0, 1))
    if "attn_layer_indices" in fields:
        indices = st.integers(0, layers - 1)
        fields["attn_layer_indices"] = draw(st.lists(indices, min_size=1, unique=True))
    for name in sorted({*INNER, *MIXED_WIDTHS} & fields.keys()):
        fields[name] = draw(st.integers(4, 64))
    for name in sorted(LINEAR_SIZES & fields.keys()):
        fields[name] = 4 * draw(st.integers(1, 4))
    if "linear_num_key_heads" in fields:
        heads = fields["linear_num_key_heads"] = draw(st.integers(1, 3))
        # OLMo Hybrid has as many heads of values
        times = 1 if family == "olmo_hybrid" else draw(st.integers(1, 2))
        fields["linear_num_value_heads"] = times * heads
    return fields | {"tie_word_embeddings": family not in UNTIED and draw(st.booleans())}


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a family and the fields of its config."""
    family = draw(st.sampled_from(sorted(ARCHITECTURES.keys() - NOT_RANDOM)))
    if family in HYBRIDS:
        return family, draw(hybrid_fields(family))
    fields = dict(CONFIGS[family])
    layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    # a size for which halved `partial_rotary_factor` parts are integers
    size = 4 * draw(st.integers(1, 4))
    if family in ("mpt", "bloom"):
        heads = max(heads, 2)
    if "attention_types" in fields:
        layers = 2 * ((layers + 1) // 2)
        fields["attention_types"] = [[["global", "local"], layers // 2]]
    _set(fields, LAYERS, layers)
    _set(fields, HEADS, heads)
    if "head_dim" in fields:
        fields["head_dim"] = size
        factor = 1 if family in SQUARE else draw(st.integers(2, 12))
        unit = heads * size if family in SQUARE else 4 * (heads if family in MULTIPLES else 1)
        _set(fields, WIDTH, factor * unit)
    else:
        _set(fields, WIDTH, heads * size)
    if "word_embed_proj_dim" in fields:
        fields["word_embed_proj_dim"] = fields["hidden_size"]
    for name in {"num_key_value_heads", "num_kv_heads"} & fields.keys():
        shared = [n for n in range(1, heads + 1) if heads % n == 0]
        if "kv_b" in (ARCHITECTURES[family].factors or ()):  # latents give each head separate keys
            shared = [heads]
        fields[name] = draw(st.sampled_from(shared))
    for name in INNER:
        if name in fields:
            fields[name] = draw(st.integers(4, 64))
    if "layer_types" in fields:
        kinds = st.sampled_from(("sliding_attention", "full_attention"))
        fields["layer_types"] = draw(st.lists(kinds, min_size=layers, max_size=layers))
    for name, kinds in LAYER_KINDS.items():
        if name in fields:
            others = st.lists(st.sampled_from(kinds), min_size=layers - 1, max_size=layers - 1)
            fields[name] = [kinds[0], *draw(others)]
    if family == "gemma4_unified_text":
        fields["layer_types"][-1] = "full_attention"  # as required by the config
    if family in ("gemma3n_text", "gemma4_text"):
        fields |= draw(layers_that_depend_on_others(family, fields["layer_types"]))
    if "no_rope_layers" in fields:
        fields["no_rope_layers"] = draw(
            st.lists(st.integers(0, 1), min_size=layers, max_size=layers)
        )
    if family in WITH_BIASES:
        fields |= {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    return family, fields | {"tie_word_embeddings": draw(st.booleans())}


def _set(fields: dict[str, Any], names: tuple[str, ...], value: int) -> None:
    fields |= {name: value for name in names if name in fields}


@st.composite
def changes(draw: st.DrawFn, policies: tuple[str, ...] = tuple(SERVING)) -> dict[str, Any]:
    """Draw the fields of a recipe other than model and data."""
    return {
        "method": draw(st.sampled_from(sorted(METHODS))),
        "policy": draw(st.sampled_from(policies)),
        "ratio": draw(st.floats(0.02, 0.9)),
        "budget": draw(st.sampled_from(sorted(BUDGETS))),
        "calibration_mode": draw(st.sampled_from(CALIBRATION_MODES)),
        "refit": draw(st.sampled_from(REFIT)),
        "rounding": draw(st.sampled_from(ROUNDING)),
        "rank_multiple": draw(st.integers(1, 4)),
        "dtype": draw(st.sampled_from(("float32", "float32", "bfloat16", "float64"))),
        "seed": draw(st.integers(0, 9)),
    }


def write_model(family: str, fields: dict[str, Any], tokenizer_of: Path, folder: Path) -> Path:
    """Write a model folder with this config and random weights."""
    network = noisy(family, fields)
    network.save_pretrained(folder)
    copy_tokenizer(tokenizer_of, folder)
    return folder


def counted(model: lrcore.LoadedModel, context: int) -> dict[str, Any]:
    """Return the account of a model, counted from its modules; permutations count no bytes, as in
    the account of a plan.
    """
    account = count_account(model.network, context)
    orders = sum(
        buffer.nbytes
        for name, buffer in model.network.named_buffers()
        if buffer.dtype in ORDERS and "mask" not in name
    )
    return replace(account, bytes=account.bytes - orders).to_dict()


def by_size(layer, hidden, call, repeats) -> float:
    """Return the latency of a layer by a deterministic clock."""
    return 1e-6 + 1e-9 * sum(parameter.numel() for parameter in layer.parameters())


def exactness(account: SizeAndCost, slots: int, seq_len: int) -> float:
    """Return the tolerance of a budget that is rounded down: latency prices are integer
    nanoseconds.
    """
    seconds = account.dense.latency
    return 1e-9 + (0.0 if seconds is None else 1e-9 * slots / (seconds * seq_len))


def logits(model: lrcore.LoadedModel) -> torch.Tensor:
    """Return the logits of fixed tokens, [2, 12, vocabulary]."""
    tokens = torch.randint(3, 280, (2, 12), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        return model.network(tokens).logits
