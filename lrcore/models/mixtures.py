"""The model families with mixtures of experts, one row each."""

from ..gates import CLAMPED
from .architecture import Architecture
from .family_parts import (
    BESIDE,
    KEPT,
    KEPT_NOTE,
    LATENT,
    LATENT_NOTE,
    NORMED,
    NORMED_TOGETHER,
    NORMS_AFTER,
    OWN_INPUTS,
)

_EXPERTS = (
    "Routed experts are solved one by one and have one rank per layer; the router and shared "
    "experts are left as they are and count in no budget but `total`."
)

# Families of which some models have mixtures: the field of the config that says so, and the row of
# such a model
SOMETIMES: dict[str, tuple[str, Architecture]] = {
    "gemma4_text": (
        "enable_moe_block",
        Architecture(
            **KEPT,
            mlp="",  # the experts stand in the layer itself, beside the MLP of all tokens
            gate="gate_proj",
            up="up_proj",
            down="down_proj",
            activation="hidden_activation",
            experts=True,
            router="router",
            width=None,
            expert_width="moe_intermediate_size",
            norm_after=NORMS_AFTER,
            adds_more=True,
            sequential=None,
            requires={"use_bidirectional_attention": (None, "vision")},
            by_token=OWN_INPUTS,
        ),
    )
}

MIXTURES: dict[str, Architecture] = {
    "mixtral": Architecture(
        experts=True, width=None, expert_width="intermediate_size", note=_EXPERTS
    ),
    "qwen2_moe": Architecture(
        experts=True, expert_width="moe_intermediate_size", note=f"{_EXPERTS} Biases as in qwen2."
    ),
    "olmoe": Architecture(
        norms=("q_norm", "k_norm"),
        norm_over="width",
        experts=True,
        width=None,
        expert_width="intermediate_size",
        requires={"clip_qkv": None},
        note=f"{NORMED_TOGETHER} {_EXPERTS}",
    ),
    "ernie4_5_moe": Architecture(
        pairs="neighbours", experts=True, width=None, note=f"{BESIDE} {_EXPERTS}"
    ),
    "gpt_oss": Architecture(
        tables="once",
        activation=CLAMPED,
        kernel="eager",
        experts=True,
        router="mlp.router",
        width=None,
        expert_width="intermediate_size",
        note="Every head has a sink, a score that belongs to no key. Gates and ups of experts are "
        f"clamped. Weights in MXFP4 are dequantised on loading. {_EXPERTS}",
    ),
    "llama4_text": Architecture(
        **KEPT,
        mlp="feed_forward",
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        experts=True,
        router="feed_forward.router",
        width="intermediate_size_mlp",
        note=f"{KEPT_NOTE} The router scales what its experts read. {_EXPERTS}",
    ),
    "deepseek_v2": Architecture(
        **LATENT,
        requires={"mlp_bias": False},
        note=f"{LATENT_NOTE} {_EXPERTS}",
    ),
    "deepseek_v3": Architecture(
        **LATENT,
        note=f"{LATENT_NOTE} DeepSeek-R1, too. Weights in FP8 are dequantised on loading. "
        f"{_EXPERTS}",
    ),
    "qwen3_moe": Architecture(
        norms=("q_norm", "k_norm"),
        experts=True,
        expert_width="moe_intermediate_size",
        note=f"{NORMED} {_EXPERTS}",
    ),
}
