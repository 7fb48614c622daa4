"""The supported families in which a mixer takes the place of attention in some layers."""

from typing import Any

from .architecture import (
    LATENT_ATTENTION,
    LATENT_ATTENTION_NOTE,
    NATIVE_ATTENTION,
    NATIVE_ATTENTION_NOTE,
    NORMS_AFTER,
    QK_NORM_NOTE,
    Architecture,
)

_MIXER_NOTE = (
    "{} takes the place of attention in some layers: its projections can be low-rank pairs, and "
    "the rest, with its state, is not changed."
)
_DELTA_NET_NOTE = _MIXER_NOTE.format("Gated DeltaNet")
_GATED_ATTENTION_NOTE = (
    "Queries carry a gate of the output of attention, so its four matrices can only be low-rank "
    "pairs."
)
_EXPERTS_NOTE = "Experts as in qwen2_moe."
_QWEN3_5: dict[str, Any] = {
    **NATIVE_ATTENTION,
    "mixer": {
        "in": "linear_attn.in_proj_qkv",
        "in_z": "linear_attn.in_proj_z",
        "in_b": "linear_attn.in_proj_b",
        "in_a": "linear_attn.in_proj_a",
        "o": "linear_attn.out_proj",
    },
    "norms": ("q_norm", "k_norm"),
    "sequential": None,
}

_LFM: dict[str, Any] = {
    "mixer": {"in": "conv.in_proj", "o": "conv.out_proj"},
    "mlp": "feed_forward",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
    "activation": "silu",
    "block_norms": ("operator_norm", "ffn_norm"),
    "last_norm": "model.embedding_norm",
    "sequential": None,
}
_LFM2: dict[str, Any] = {
    **_LFM,
    "o": "self_attn.out_proj",
    "norms": ("q_layernorm", "k_layernorm"),
}
_CONVOLUTION_NOTE = _MIXER_NOTE.format("A short convolution")
_MAMBA: dict[str, str] = {"in": "mamba.in_proj", "o": "mamba.out_proj"}
_MAMBA_NOTE = _MIXER_NOTE.format("Mamba 2")
_FEED_FORWARD: dict[str, Any] = {
    "mlp": "feed_forward",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
    "block_norms": ("input_layernorm", "pre_ff_layernorm"),
    "last_norm": "model.final_layernorm",
    "sequential": None,
}
_GRANITE: dict[str, Any] = {
    "mixer": _MAMBA,
    "rotated": lambda attention: attention.config.position_embedding_type == "rope",
    "residual": "residual_multiplier",
    "sequential": None,
}
_DELTA_INPUTS = {f"in_{name}": f"self_attn.{name}_proj" for name in "qkvb"}

HYBRIDS: dict[str, Architecture] = {
    "qwen3_next": Architecture(
        **NATIVE_ATTENTION,
        mixer={
            "in": "linear_attn.in_proj_qkvz",
            "in_ba": "linear_attn.in_proj_ba",
            "o": "linear_attn.out_proj",
        },
        norms=("q_norm", "k_norm"),
        experts=True,
        expert_width="moe_intermediate_size",
        sequential=None,
        note=f"{_DELTA_NET_NOTE} {_GATED_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "qwen3_5_text": Architecture(
        **_QWEN3_5,
        note=f"{_DELTA_NET_NOTE} {_GATED_ATTENTION_NOTE}",
    ),
    "qwen3_5_moe_text": Architecture(
        **_QWEN3_5,
        experts=True,
        width=None,
        expert_width="moe_intermediate_size",
        note=f"{_DELTA_NET_NOTE} {_GATED_ATTENTION_NOTE} {_EXPERTS_NOTE}",
    ),
    "lfm2": Architecture(
        **_LFM2,
        width=None,  # may be adjusted
        note=f"{_CONVOLUTION_NOTE} {QK_NORM_NOTE}",
    ),
    "lfm3": Architecture(
        **_LFM,
        **NATIVE_ATTENTION,
        norm_after=("post_operator_norm", "post_ffn_norm"),
        note=f"{_CONVOLUTION_NOTE} A gate scales the output of each head, and norms follow mixer, "
        f"attention and MLP. {NATIVE_ATTENTION_NOTE}",
    ),
    "lfm2_moe": Architecture(
        **_LFM2,
        experts=True,
        router="feed_forward.gate",
        expert_width="moe_intermediate_size",
        note=f"As lfm2. {_EXPERTS_NOTE}",
    ),
    "granitemoehybrid": Architecture(
        **_GRANITE,
        mlp="shared_mlp",
        gate="shared_mlp.input_linear",
        up="shared_mlp.input_linear",
        down="shared_mlp.output_linear",
        width="shared_intermediate_size",
        note=f"Granite 4. {_MAMBA_NOTE} The config selects rotary or no positions. With experts, "
        f"the parallel MLP is a shared expert. {_EXPERTS_NOTE}",
    ),
    "falcon_h1": Architecture(
        native_attention=True,
        factors={
            "mixer_in": "mamba.in_proj",
            "mixer_o": "mamba.out_proj",
            **NATIVE_ATTENTION["factors"],
        },
        **_FEED_FORWARD,
        layer_returns="tuple",
        has_further_updates=True,
        note="Every layer has an attention and a Mamba 2 in parallel, with factors for both. Their "
        "modules and states are not changed: their matrices can be low-rank pairs.",
    ),
    "olmo_hybrid": Architecture(
        mixer={
            **{f"in_{name}": f"linear_attn.{name}_proj" for name in "qkvgba"},
            "o": "linear_attn.o_proj",
        },
        norms=("q_norm", "k_norm"),
        norm_over="width",
        norm_after=NORMS_AFTER,
        rotated=lambda attention: attention.config.rope_parameters is not None,
        sequential=None,
        note=f"Layers with attention as in olmo3. {_DELTA_NET_NOTE}",
    ),
    "jamba": Architecture(
        mixer={"in": "mamba.in_proj", "x": "mamba.x_proj", "o": "mamba.out_proj"},
        position="none",
        **_FEED_FORWARD,
        experts=True,
        router="feed_forward.router",
        width=None,
        note=f"{_MIXER_NOTE.format('Mamba')} transformers continues the states of a cache by "
        f"single tokens only. {_EXPERTS_NOTE}",
    ),
    "bamba": Architecture(
        mixer=_MAMBA,
        **_FEED_FORWARD,
        layer_returns="tuple",
        note=f"{_MAMBA_NOTE} Partial rotary embedding as in stablelm. With a cache, transformers "
        "needs the positions of the tokens.",
    ),
    "nemotron_h": Architecture(
        attention="mixer",
        q="mixer.q_proj",
        k="mixer.k_proj",
        v="mixer.v_proj",
        o="mixer.o_proj",
        mixer={"in": "mixer.in_proj", "o": "mixer.out_proj"},
        position="none",
        mlp="mixer",
        gate=None,
        up="mixer.up_proj",
        down="mixer.down_proj",
        activation="mlp_hidden_act",
        block_norms=("norm", "norm"),
        last_norm="model.norm_f",
        sequential=None,
        experts=True,
        router="mixer.gate",
        expert_width="moe_intermediate_size",
        note="A layer is either Mamba 2, attention, MLP or experts without gates, which may read "
        "a projection to a smaller width. The projections of Mamba can be low-rank pairs. "
        f"{_EXPERTS_NOTE}",
    ),
    "kimi_linear": Architecture(
        **LATENT_ATTENTION,
        mixer={
            **_DELTA_INPUTS,
            "in_f": "self_attn.forget_gate.f_a_proj",
            "f_b": "self_attn.forget_gate.f_b_proj",
            "in_g": "self_attn.g_a_proj",
            "g_b": "self_attn.g_b_proj",
            "o": "self_attn.o_proj",
        },
        experts=True,
        width=None,
        sequential=None,
        note=f"{_MIXER_NOTE.format('Kimi Delta Attention')} {LATENT_ATTENTION_NOTE} "
        f"{_EXPERTS_NOTE}",
    ),
    "bailing_hybrid": Architecture(
        **LATENT_ATTENTION,
        mixer={
            **_DELTA_INPUTS,
            "in_f": "self_attn.forget_gate.f_proj",
            "in_g": "self_attn.g_proj",
            "o": "self_attn.o_proj",
        },
        experts=True,
        width=None,
        sequential=None,
        note="Ling 3. As kimi_linear, with a gate of each head of the latent attention.",
    ),
}

# Families with another row if a config field is set: the field and the row
HYBRID_VARIANTS: dict[str, tuple[str, Architecture]] = {
    "granitemoehybrid": (
        "num_local_experts",
        Architecture(
            **_GRANITE,
            mlp="block_sparse_moe",
            gate=None,
            up="block_sparse_moe.up_proj",  # no layer has these matrices
            down="block_sparse_moe.down_proj",
            experts=True,
            router="block_sparse_moe.router",
            width=None,
            expert_width="intermediate_size",
        ),
    ),
}
