"""The supported model families, and access to a network by its family."""

import math
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

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
from .by_structure import BY_STRUCTURE, infer_row
from .hybrid_families import HYBRID_VARIANTS, HYBRIDS
from .kv_cache import CACHE_ARGUMENT
from .mixture_families import MIXTURES, VARIANTS


def _fused(path: str) -> dict[str, Any]:
    return {"q": path, "k": path, "v": path}


# The release of transformers that renamed the cache argument also rewrote GPT-J.
_GPTJ: dict[str, Any] = (
    {} if CACHE_ARGUMENT == "cache" else {"kernel": "eager", "layer_returns": "tuple"}
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        note="Llama 1 to 3.x. Rope scaling changes the angles only and needs no special treatment."
    ),
    "mistral": Architecture(note="The model's mask implements the sliding window."),
    "ministral": Architecture(note="Sliding windows as in mistral, in some layers."),
    "qwen2": Architecture(
        note="Biases of queries, keys and values are compressed with the weights."
    ),
    "qwen3": Architecture(norms=("q_norm", "k_norm"), note=QK_NORM_NOTE),
    "gemma": Architecture(
        norm_offset=1.0,
        note="The config sets the head size. The scale of the embeddings and the (1 + w) norms "
        "stay outside the projections.",
    ),
    "gemma2": Architecture(
        activation="hidden_activation",
        softcap="attn_logit_softcapping",
        kernel="eager",
        norm_after=NORMS_AFTER,
        sequential=None,
        requires={"use_bidirectional_attention": None},
        note="As gemma. Compressed attention applies the softcap of the scores, too.",
    ),
    "gemma3_text": Architecture(
        norms=("q_norm", "k_norm"),
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        sequential=None,
        requires={"attn_logit_softcapping": None, "use_bidirectional_attention": False},
        note=f"As gemma, with two rotary embeddings. {QK_NORM_NOTE}",
    ),
    "gemma4_text": Architecture(
        **NATIVE_ATTENTION,
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        has_further_updates=True,
        sequential=None,
        requires={
            "use_bidirectional_attention": (None, "vision"),  # images only; text stays causal
        },
        token_inputs=TOKEN_INPUTS,
        note="Gemma 4 E2B, E4B and 31B. The head size differs by layer, and values are "
        f"normalized. {NATIVE_ATTENTION_NOTE} Attention has three matrices if the values equal "
        "the keys, and two in layers that reuse keys and values of an earlier layer. Embeddings "
        "per layer are not compressed. In Gemma 4 26B the routed experts are compressed; the "
        "parallel MLP is a shared expert.",
    ),
    "gemma4_unified_text": Architecture(
        **NATIVE_ATTENTION,
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        has_further_updates=True,
        sequential=None,
        requires={"use_bidirectional_attention": (None, "vision")},
        token_inputs=("num_kv_shared_layers",),
        note="Gemma 4 12B. As gemma4_text, without embeddings per layer and experts.",
    ),
    "gemma3n_text": Architecture(
        **NATIVE_ATTENTION,
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        has_further_updates=True,
        sequential=None,
        token_inputs=TOKEN_INPUTS,
        active_stream="altup_active_idx",
        width=None,  # a list with an entry per layer
        note=f"Gemma 3n E2B and E4B, text only. {NATIVE_ATTENTION_NOTE} Attention has two "
        "matrices in layers that reuse keys and values of an earlier layer. Activation sparsity "
        "takes its cutoff from the remaining neurons. Embeddings per layer, AltUp and the "
        "low-rank path parallel to attention are not compressed.",
    ),
    "phi": Architecture(
        o="self_attn.dense",
        up="mlp.fc1",
        down="mlp.fc2",
        gate=None,
        block_norms=("input_layernorm", "input_layernorm"),
        last_norm="model.final_layernorm",
        sequential=None,
        requires={"qk_layernorm": False},
        note="Phi-1 to 2. Attention and MLP share a norm. Columns of a head outside the partial "
        "rotary embedding count as pairs of angle zero; a3 and fused split such a pair in two.",
    ),
    "phi3": Architecture(
        **_fused("self_attn.qkv_proj"),
        qkv="stacked",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
        note="Fused qkv and gate_up are split if one of their parts changes.",
    ),
    "gpt2": Architecture(
        layers="transformer.h",
        attention="attn",
        **_fused("attn.c_attn"),
        o="attn.c_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
        gate=None,
        qkv="stacked",
        position="none",
        activation="activation_function",
        width="n_inner",
        block_norms=("ln_1", "ln_2"),
        last_norm="transformer.ln_f",
        positions="transformer.wpe",
        requires={"add_cross_attention": False},
        note="Conv1D weights are read transposed. Fused qkv is split if one of its parts changes.",
    ),
    "opt": Architecture(
        layers="model.decoder.layers",
        o="self_attn.out_proj",
        up="fc1",
        down="fc2",
        gate=None,
        position="none",
        activation="activation_function",
        width="ffn_dim",
        block_norms=("self_attn_layer_norm", "final_layer_norm"),
        last_norm="model.decoder.final_layer_norm",
        positions="model.decoder.embed_positions",
        mlp_parts=("fc1", "activation_fn", "fc2"),
        sequential={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
    ),
    "gpt_neox": Architecture(
        layers="gpt_neox.layers",
        attention="attention",
        **_fused("attention.query_key_value"),
        o="attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        gate=None,
        qkv="by_group",
        last_norm="gpt_neox.final_layer_norm",
        sequential={"use_parallel_residual": False},
        note="Pythia. qkv is fused by head and split if one of its parts changes. Columns of a "
        "head outside the partial rotary embedding count as pairs of angle zero; a3 and fused "
        "split such a pair in two. The config selects a parallel or sequential residual.",
    ),
    "gptj": Architecture(
        layers="transformer.h",
        attention="attn",
        q="attn.q_proj",
        k="attn.k_proj",
        v="attn.v_proj",
        o="attn.out_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
        gate=None,
        pairs="interleaved",
        scale=lambda attention: attention.head_dim**-0.5,
        activation="activation_function",
        **_GPTJ,
        width="n_inner",
        block_norms=("ln_1", "ln_1"),
        last_norm="transformer.ln_f",
        sequential=None,
        note=f"Attention and MLP share a norm. {INTERLEAVED_NOTE} Partial rotary embedding as in "
        "stablelm.",
    ),
    "gpt_neo": Architecture(
        layers="transformer.h",
        attention="attn.attention",
        q="attn.attention.q_proj",
        k="attn.attention.k_proj",
        v="attn.attention.v_proj",
        o="attn.attention.out_proj",
        up="mlp.c_fc",
        down="mlp.c_proj",
        gate=None,
        position="none",
        scale=None,
        activation="activation_function",
        window="window_size",
        kernel="eager",
        layer_returns="tuple",
        block_norms=("ln_1", "ln_2"),
        last_norm="transformer.ln_f",
        positions="transformer.wpe",
        note="Scores are not scaled. Layers of type `local` keep their window in compressed "
        "attention.",
    ),
    "bloom": Architecture(
        layers="transformer.h",
        attention="self_attention",
        **_fused("self_attention.query_key_value"),
        o="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        gate=None,
        qkv="by_group",
        position="none",
        scale="inv_norm_factor",
        activation="gelu_pytorch_tanh",
        kernel="eager",
        layer_returns="tuple",
        width=None,
        last_norm="transformer.ln_f",
        sequential=None,
        requires={"slow_but_exact": False, "apply_residual_connection_post_layernorm": False},
        note="ALiBi is added to the scores and does not change the projections, so QK is solved as "
        "without positions.",
    ),
    "falcon": Architecture(
        layers="transformer.h",
        attention="self_attention",
        **_fused("self_attention.query_key_value"),
        o="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
        gate=None,
        qkv="by_group",
        scale="inv_norm_factor",
        activation="activation",
        layer_returns="tuple",
        width="ffn_hidden_size",
        block_norms=("ln_attn", "ln_mlp"),
        last_norm="transformer.ln_f",
        sequential=None,
        requires={"alibi": False},
        note="Falcon 7B to 180B. qkv is fused by groups of heads; the config sets their number.",
    ),
    "mpt": Architecture(
        layers="transformer.blocks",
        attention="attn",
        **_fused("attn.Wqkv"),
        o="attn.out_proj",
        mlp="ffn",
        up="ffn.up_proj",
        down="ffn.down_proj",
        gate=None,
        qkv="stacked",
        position="none",
        scale="softmax_scale",
        activation="gelu",
        kernel="eager",
        layer_returns="tuple",
        width=None,
        block_norms=("norm_1", "norm_2"),
        last_norm="transformer.norm_f",
        sequential=None,
        requires={"attn_config.clip_qkv": None},
        note="ALiBi as in bloom.",
    ),
    "olmo2": Architecture(
        norms=("q_norm", "k_norm"),
        norm_over="width",
        norm_after=NORMS_AFTER,
        sequential=None,
        note=f"{WIDE_QK_NORM_NOTE} The norms follow attention and MLP.",
    ),
    "olmo": Architecture(
        sequential=None,
        requires={"clip_qkv": None},
        note="Norms have no weights.",
    ),
    "olmo3": Architecture(
        norms=("q_norm", "k_norm"),
        norm_over="width",
        norm_after=NORMS_AFTER,
        sequential=None,
        note="As olmo2, with sliding windows by layer.",
    ),
    "cohere": Architecture(
        pairs="interleaved",
        tables="neighbours",
        block_norms=("input_layernorm", "input_layernorm"),
        sequential=None,
        requires={"use_qk_norm": False},
        note=f"Attention and MLP share a norm. {INTERLEAVED_NOTE}",
    ),
    "cohere2": Architecture(
        pairs="interleaved",
        tables="neighbours",
        rotated=lambda attention: attention.sliding_window is not None,
        block_norms=("input_layernorm", "input_layernorm"),
        sequential=None,
        note="As cohere. Layers without a sliding window have no rotary embedding and take any "
        "rank.",
    ),
    "glm": Architecture(
        pairs="interleaved",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
        note=f"{INTERLEAVED_NOTE} Partial rotary embedding as in stablelm.",
    ),
    "glm4": Architecture(
        pairs="interleaved",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
        norm_after=("post_self_attn_layernorm", "post_mlp_layernorm"),
        sequential=None,
        note="As glm, with additional norms after attention and MLP.",
    ),
    "ernie4_5": Architecture(pairs="interleaved", note=INTERLEAVED_NOTE),
    "exaone4": Architecture(
        norms=("q_norm", "k_norm"),
        norm_after=NORMS_AFTER,
        rotated=rotated_in_windows,
        sequential=None,
        note=f"{QK_NORM_NOTE} The norms follow attention and MLP.",
    ),
    "smollm3": Architecture(
        note="Layers without rotary embedding take any rank, the other layers full rotary pairs."
    ),
    "granite": Architecture(
        residual="residual_multiplier",
        sequential=None,
        note="Multipliers of the embedding, the scores, the residual stream and the logits stay "
        "outside the projections.",
    ),
    "arcee": Architecture(gate=None, note="The MLP has no gate and squares a ReLU."),
    "stablelm": Architecture(
        sequential=None,
        requires={"qk_layernorm": False},
        note="Columns of a head outside the partial rotary embedding count as pairs of angle zero; "
        "a3 and fused split such a pair in two. The config selects a parallel or sequential "
        "residual.",
    ),
    "nemotron": Architecture(
        gate=None,
        sequential=None,
        note="The MLP has no gate and squares a ReLU. Partial rotary embedding as in stablelm.",
    ),
    "starcoder2": Architecture(up="mlp.c_fc", down="mlp.c_proj", gate=None),
    "exaone": Architecture(note="EXAONE 3.x: the module of Llama."),
    "internlm3": Architecture(note="The module of Llama, with optional biases."),
    "seed_oss": Architecture(note="Biases as in qwen2."),
    "cwm": Architecture(note="Sliding windows as in mistral, in some layers."),
    "helium": Architecture(pairs="interleaved", note=INTERLEAVED_NOTE),
    "jais2": Architecture(
        gate=None,
        note="The MLP has no gate and squares a ReLU. Norms and projections have biases.",
    ),
    "apertus": Architecture(
        norms=("q_norm", "k_norm"),
        gate=None,
        block_norms=("attention_layernorm", "feedforward_layernorm"),
        note=f"{QK_NORM_NOTE} The MLP has no gate; its activation xIELU has learned parameters, "
        "which are not compressed.",
    ),
    "hunyuan_v1_dense": Architecture(
        **NATIVE_ATTENTION, note=f"{NORM_AFTER_ROTATION_NOTE} {NATIVE_ATTENTION_NOTE}"
    ),
    "ministral3": Architecture(
        **NATIVE_ATTENTION, note=f"Queries are scaled by their position. {NATIVE_ATTENTION_NOTE}"
    ),
    "granite_swa": Architecture(
        **NATIVE_ATTENTION,
        kernel="eager",
        residual="residual_multiplier",
        sequential=None,
        note="As granite, with a sink in every head, sliding windows in some layers, and a rotary "
        f"base per layer. {NATIVE_ATTENTION_NOTE}",
    ),
    "minicpm3": Architecture(
        **LATENT_ATTENTION,
        residual=lambda config: config.scale_depth / math.sqrt(config.num_hidden_layers),
        sequential=None,
        note=f"{LATENT_ATTENTION_NOTE} Multipliers of the embedding, the residual stream and the "
        "logits stay outside the projections.",
    ),
    **MIXTURES,
    **HYBRIDS,
}


# Families that are often requested but cannot be loaded, and the reason
UNSUPPORTED_FAMILIES = {
    "blt": "its largest layers run on patches of bytes, not on tokens",
    "gemma3n": "images and sounds need further packages; save the language model as a gemma3n_text",
    "llama4": "the multimodal model does not run in transformers 5.24; save the language model as "
    "a llama4_text",
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        "it drafts tokens for another model, whose states and keys it reads",
    ),
    "youtu": "`export --format mla` writes it for other programs; load the original checkpoint",
}

# Multimodal families, each with the path of the language model, which is of a family above.
MULTIMODAL = dict.fromkeys(
    (
        *("llava", "llava_next", "llava_onevision", "vipllava", "gemma3", "gemma4", "mistral3"),
        *("gemma4_unified", "internvl", "kimi_k25", "got_ocr2", "moss_transcribe_diarize"),
        *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    ),
    "model.language_model",
) | {"smolvlm": "model.text_model"}
# Language models that exist only inside a multimodal model, and the family of their layers
SAME_LAYERS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Multimodal families whose vision tower has eager attention only
EAGER_FAMILIES = ("got_ocr2",)
# Multimodal families whose masks can let the patches of an image attend in both directions, with
# the argument that marks the patches
BIDIRECTIONAL_IMAGES = {
    "gemma3": "token_type_ids",
    "gemma4": "mm_token_type_ids",
    "gemma4_unified": "mm_token_type_ids",
}
# Multimodal families that read sounds, but no images
SOUNDS_ONLY = ("moss_transcribe_diarize",)


def text_config(network: PreTrainedModel) -> Any:
    """Return the config of the language model, which may be part of a multimodal config."""
    return network.config.get_text_config()


def config_architecture(text: PretrainedConfig) -> Architecture:
    """Return the family of a language model's config; `BY_STRUCTURE` without a row."""
    field, variant = (VARIANTS | HYBRID_VARIANTS).get(text.model_type, ("", None))
    if variant is not None and getattr(text, field):
        return variant
    family = SAME_LAYERS.get(text.model_type, text.model_type)
    return ARCHITECTURES.get(family, BY_STRUCTURE)


def architecture_of(network: PreTrainedModel) -> Architecture:
    """Return the family of a network's language model, with `layers` relative to the network."""
    row = config_architecture(text_config(network))
    if row.is_inferred:
        return infer_row(network)
    inside = MULTIMODAL.get(network.config.model_type)
    if inside is None:
        return row
    layers, kernel = f"{inside}.{row.layers.partition('.')[2]}", attention_kernel(network.config)
    return replace(row, layers=layers, kernel=kernel)


def attention_kernel(config: PretrainedConfig) -> Literal["sdpa", "eager"]:
    """Return the `attn_implementation` that a model runs with."""
    if config.model_type in EAGER_FAMILIES:
        return "eager"
    return config_architecture(config.get_text_config()).kernel


def residual_multiplier(network: PreTrainedModel) -> float:
    """Return the factor that scales the outputs of attention and MLP before they are added."""
    residual, config = architecture_of(network).residual, text_config(network)
    if callable(residual):
        return residual(config)
    return 1.0 if residual is None else float(getattr(config, residual))


def norm_after(network: PreTrainedModel, layer: nn.Module, component: str) -> nn.Module | None:
    """Return the norm of a component's output before it is added to the residual stream, or None.

    component: "attention" or "mlp".
    """
    paths = architecture_of(network).of_layer(layer).norm_after
    if paths is None:
        return None
    return layer.get_submodule(paths[("attention", "mlp").index(component)])


def has_token_inputs(network: PreTrainedModel) -> bool:
    """Return True if layers take inputs that depend on the tokens, see `token_inputs`."""
    text = text_config(network)
    return any(getattr(text, name) for name in architecture_of(network).token_inputs)


def active_stream(network: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the residual stream that attention and MLP read and change, [b, t, d].

    hidden: hidden states of a layer; see `Architecture.active_stream`.
    """
    field = architecture_of(network).active_stream
    return hidden if field is None else hidden[getattr(text_config(network), field)]


def decoder_layers(network: PreTrainedModel) -> nn.ModuleList:
    """Return the decoder layers of a network, in order."""
    layers: nn.ModuleList = network.get_submodule(architecture_of(network).layers)
    return layers
