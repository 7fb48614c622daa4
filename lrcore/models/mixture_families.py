"""The supported families with mixtures of experts."""

from typing import Any

from ..layers.layer import CLAMPED, LIMITED
from .architecture import (
    INTERLEAVED_NOTE,
    LATENT_ATTENTION,
    LATENT_ATTENTION_NOTE,
    NATIVE_ATTENTION,
    NATIVE_ATTENTION_NOTE,
    NORM_AFTER_ROTATION_NOTE,
    NORMS_AFTER,
    QK_NORM_NOTE,
    TOKEN_INPUTS,
    WIDE_QK_NORM_NOTE,
    Architecture,
    rotated_in_windows,
)

# Names of the number of experts in configs, which may alias each other
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")

# The width of shared experts is derived from the width of routed experts.
_SHARED_EXPERTS: dict[str, Any] = {"experts": True, "width": None}

_EXPERTS_NOTE = (
    "Routed experts are solved separately and have a common rank per layer. The router and shared "
    "experts are not compressed; only the budget `total` counts them."
)

_INDEXER_NOTE = (
    "An indexer selects the tokens that a query attends to; it is not compressed, and its keys "
    "count in the cache."
)

# Matrices of LongCat-Flash: of two latent attentions and two MLPs
_LATENT_NAMES = {
    name: path.removeprefix("self_attn.") for name, path in LATENT_ATTENTION["factors"].items()
}
_LONGCAT = {
    **{name: f"self_attn.0.{leaf}" for name, leaf in _LATENT_NAMES.items()},
    **{f"mlp_{name}": f"mlps.0.{name}_proj" for name in ("gate", "up", "down")},
    **{f"second_{name}": f"self_attn.1.{leaf}" for name, leaf in _LATENT_NAMES.items()},
    **{f"second_mlp_{name}": f"mlps.1.{name}_proj" for name in ("gate", "up", "down")},
}

# Families with another row if a config field is set: the field and the row
VARIANTS: dict[str, tuple[str, Architecture]] = {
    "gemma4_text": (
        "enable_moe_block",
        Architecture(
            **NATIVE_ATTENTION,
            mlp="",  # the experts are submodules of the layer, parallel to the MLP of all tokens
            gate="gate_proj",
            up="up_proj",
            down="down_proj",
            activation="hidden_activation",
            experts=True,
            router="router",
            width=None,
            expert_width="moe_intermediate_size",
            norm_after=NORMS_AFTER,
            has_further_updates=True,
            sequential=None,
            requires={"use_bidirectional_attention": (None, "vision")},
            token_inputs=TOKEN_INPUTS,
        ),
    ),
    # A norm of heads does not follow the order of partially rotated columns in other heads.
    "glm4_moe": ("use_qk_norm", Architecture(**_SHARED_EXPERTS, **NATIVE_ATTENTION)),
}

MIXTURES: dict[str, Architecture] = {
    "mixtral": Architecture(
        experts=True, width=None, expert_width="intermediate_size", note=_EXPERTS_NOTE
    ),
    "qwen2_moe": Architecture(
        experts=True,
        expert_width="moe_intermediate_size",
        note=f"{_EXPERTS_NOTE} Biases as in qwen2.",
    ),
    "olmoe": Architecture(
        norms=("q_norm", "k_norm"),
        norm_over="width",
        experts=True,
        width=None,
        expert_width="intermediate_size",
        requires={"clip_qkv": None},
        note=f"{WIDE_QK_NORM_NOTE} {_EXPERTS_NOTE}",
    ),
    "ernie4_5_moe": Architecture(
        pairs="interleaved", experts=True, width=None, note=f"{INTERLEAVED_NOTE} {_EXPERTS_NOTE}"
    ),
    "gpt_oss": Architecture(
        tables="once",
        activation=CLAMPED,
        kernel="eager",
        experts=True,
        router="mlp.router",
        width=None,
        expert_width="intermediate_size",
        note="Every head has a sink, a score without a key. Gates and ups of experts are clamped. "
        f"Weights in MXFP4 are dequantized on loading. {_EXPERTS_NOTE}",
    ),
    "llama4_text": Architecture(
        **NATIVE_ATTENTION,
        mlp="feed_forward",
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        experts=True,
        router="feed_forward.router",
        width="intermediate_size_mlp",
        note=f"{NATIVE_ATTENTION_NOTE} The router scales the inputs of the experts. "
        f"{_EXPERTS_NOTE}",
    ),
    "deepseek_v2": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        requires={"mlp_bias": False},
        note=f"{LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "deepseek_v3": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        note=f"{LATENT_ATTENTION_NOTE} Includes DeepSeek-R1. Weights in FP8 are dequantized on "
        f"loading. {_EXPERTS_NOTE}",
    ),
    "qwen3_moe": Architecture(
        norms=("q_norm", "k_norm"),
        experts=True,
        expert_width="moe_intermediate_size",
        note=f"{QK_NORM_NOTE} {_EXPERTS_NOTE}",
    ),
    "phimoe": Architecture(
        experts=True,
        router="mlp.router",
        width=None,
        expert_width="intermediate_size",
        note=f"Phi-3.5-MoE. Norms have biases. {_EXPERTS_NOTE}",
    ),
    "dots1": Architecture(
        **_SHARED_EXPERTS, norms=("q_norm", "k_norm"), note=f"{QK_NORM_NOTE} {_EXPERTS_NOTE}"
    ),
    "hy_v3": Architecture(
        **_SHARED_EXPERTS, norms=("q_norm", "k_norm"), note=f"{QK_NORM_NOTE} {_EXPERTS_NOTE}"
    ),
    "solar_open": Architecture(**_SHARED_EXPERTS, note=_EXPERTS_NOTE),
    "glm4_moe": Architecture(
        **_SHARED_EXPERTS,
        note="GLM-4.5 to 4.7. Partial rotary embedding as in stablelm. With `use_qk_norm`, "
        f"attention as in minimax_m2. {_EXPERTS_NOTE}",
    ),
    "minimax_m2": Architecture(
        **NATIVE_ATTENTION,
        experts=True,
        width=None,
        expert_width="intermediate_size",
        note="Queries and keys are normalized before a partial rotary embedding. "
        f"{NATIVE_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "exaone_moe": Architecture(
        **_SHARED_EXPERTS,
        norms=("q_norm", "k_norm"),
        rotated=rotated_in_windows,
        note=f"Attention as in exaone4. {_EXPERTS_NOTE}",
    ),
    "hunyuan_v1_moe": Architecture(
        **_SHARED_EXPERTS,
        **NATIVE_ATTENTION,
        note=f"{NORM_AFTER_ROTATION_NOTE} {NATIVE_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "mimo_v2_flash": Architecture(
        **NATIVE_ATTENTION,
        kernel="eager",
        experts=True,
        expert_width="moe_intermediate_size",
        note="Heads of values are narrower than those of keys, and layers with a sliding window "
        f"have sinks. {NATIVE_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "afmoe": Architecture(
        **_SHARED_EXPERTS,
        **NATIVE_ATTENTION,
        router="mlp.router",
        norm_after=("post_attention_layernorm", "post_mlp_layernorm"),
        note="The output of attention is gated, and norms follow attention and MLP. "
        f"{NATIVE_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "glm4_moe_lite": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        note=f"GLM-4.7-Flash. {LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "axk1": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        note=f"A.X-K1. A norm follows the experts. {LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "deepseek_v32": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        note=f"{_INDEXER_NOTE} {LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "glm_moe_dsa": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        attention_returns=3,
        layer_returns="tuple",
        passes="prev_topk_indices",
        note=f"GLM-5. {_INDEXER_NOTE} Some layers reuse the tokens of an earlier layer. "
        f"{LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "mistral4": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        note=f"Mistral 4. {LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "longcat_flash": Architecture(
        native_attention=True,
        attention="self_attn.0",
        factors=_LONGCAT,
        experts=True,
        router="mlp.router",
        width=None,
        expert_width="expert_ffn_hidden_size",
        has_further_updates=True,
        sequential=None,
        note="A layer has two attentions and two MLPs, with factors for all, beside the experts. "
        f"{LATENT_ATTENTION_NOTE} So can the matrices of both MLPs. {_EXPERTS_NOTE}",
    ),
    "hy_v4": Architecture(
        native_attention=True,
        factors={
            **{name: LATENT_ATTENTION["factors"][name] for name in ("q_a", "q_b", "kv_a", "kv_b")},
            "attn_gate": "self_attn.gate_proj",
            "out": "self_attn.o_proj",
        },
        **_SHARED_EXPERTS,
        expert_activation=LIMITED,
        kernel="eager",
        layer_returns="tuple",
        attention_returns=3,
        passes="prev_topk_indices",
        has_further_updates=True,
        sequential=None,
        note="As glm_moe_dsa, with a gate of the output of attention, four residual streams, which "
        "the layers mix, and clamped gates and ups in the experts.",
    ),
    "sarvam_mla": Architecture(
        **_SHARED_EXPERTS,
        **LATENT_ATTENTION,
        note=f"The module of deepseek_v3. {LATENT_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
}
