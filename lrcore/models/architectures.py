"""The model families, one row each."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from .architecture import Architecture
from .cached import CACHE_ARGUMENT
from .family_parts import BESIDE, KEPT, KEPT_NOTE, NORMED, NORMED_TOGETHER, NORMS_AFTER, OWN_INPUTS
from .mixtures import MIXTURES, SOMETIMES


def _fused(path: str) -> dict[str, Any]:
    return {"q": path, "k": path, "v": path}


# GPT-J was written anew in the release in which the cache argument was renamed.
_GPTJ: dict[str, Any] = (
    {} if CACHE_ARGUMENT == "cache" else {"kernel": "eager", "layer_returns": "tuple"}
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        note="Llama 1 to 3.x; rope scaling acts on the angles and needs nothing."
    ),
    "mistral": Architecture(note="The sliding window is in the mask that the model makes."),
    "ministral": Architecture(note="Sliding windows as in mistral, by layer."),
    "qwen2": Architecture(note="Biases of queries, keys and values are mapped with the weights."),
    "qwen3": Architecture(norms=("q_norm", "k_norm"), note=NORMED),
    "gemma": Architecture(
        norm_offset=1.0,
        note="Head size is the config's. The scale of the embeddings and (1 + w) norms stay "
        "outside the projections.",
    ),
    "gemma2": Architecture(
        activation="hidden_activation",
        softcap="attn_logit_softcapping",
        kernel="eager",
        norm_after=NORMS_AFTER,
        sequential=None,
        requires={"use_bidirectional_attention": None},
        note="As gemma; the softcap of the scores is applied in compressed attention too.",
    ),
    "gemma3_text": Architecture(
        norms=("q_norm", "k_norm"),
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        sequential=None,
        requires={"attn_logit_softcapping": None, "use_bidirectional_attention": False},
        note=f"As gemma, with two rotary embeddings. {NORMED}",
    ),
    "gemma4_text": Architecture(
        **KEPT,
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        adds_more=True,
        sequential=None,
        requires={
            "use_bidirectional_attention": (None, "vision"),  # of images: text stays causal
        },
        by_token=OWN_INPUTS,
        note=f"Gemma 4 E2B, E4B and 31B; heads differ in size by layer, and values are normalised. "
        f"{KEPT_NOTE} Where keys give the values too, there are three, and two where a layer reads "
        "the keys and values of an earlier one. Embeddings of single layers stay as they are. Of "
        "Gemma 4 26B, the routed experts are compressed, and the MLP beside them is a shared one.",
    ),
    "gemma3n_text": Architecture(
        **KEPT,
        activation="hidden_activation",
        norm_after=NORMS_AFTER,
        adds_more=True,
        sequential=None,
        by_token=OWN_INPUTS,
        active="altup_active_idx",
        width=None,  # a list, one for every layer
        note=f"Gemma 3n E2B and E4B without images and sounds. {KEPT_NOTE} Where a layer reads the "
        "keys and values of an earlier one, there are two. With activation sparsity, the cutoff "
        "of the neurons is that of those that are left. Embeddings of single layers, alternating "
        "updates and the low-rank path beside attention stay as they are.",
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
        note="Phi-1 to 2. Attention and MLP share one norm. Columns of a head beyond the partial "
        "rotary embedding count as pairs of angle zero; a3 and fused make two directions of each.",
    ),
    "phi3": Architecture(
        **_fused("self_attn.qkv_proj"),
        qkv="stacked",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
        note="Fused qkv and gate_up are split where one of their parts changes.",
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
        note="Conv1D weights are read transposed; fused qkv is split where one of its parts "
        "changes.",
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
        feed=("fc1", "activation_fn", "fc2"),
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
        note="Pythia. qkv is fused head by head and split where one of its parts changes. Columns "
        "of a head beyond the partial rotary embedding count as pairs of angle zero; a3 and fused "
        "make two directions of each. Parallel residual or not follows the config.",
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
        pairs="neighbours",
        scale=lambda attention: attention.head_dim**-0.5,
        activation="activation_function",
        **_GPTJ,
        width="n_inner",
        block_norms=("ln_1", "ln_1"),
        last_norm="transformer.ln_f",
        sequential=None,
        note=f"Attention and MLP share one norm. {BESIDE} Partial rotary embedding as in stablelm.",
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
        note="ALiBi is added to the scores and does not touch the projections, so QK is solved as "
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
        note="Falcon 7B to 180B. qkv is fused by groups of heads, as many as the config says.",
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
        note=f"{NORMED_TOGETHER} Norms stand after the components.",
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
        pairs="neighbours",
        tables="neighbours",
        block_norms=("input_layernorm", "input_layernorm"),
        sequential=None,
        requires={"use_qk_norm": False},
        note=f"Attention and MLP share one norm. {BESIDE}",
    ),
    "cohere2": Architecture(
        pairs="neighbours",
        tables="neighbours",
        rotated=lambda attention: attention.sliding_window is not None,
        block_norms=("input_layernorm", "input_layernorm"),
        sequential=None,
        note="As cohere; layers without a sliding window have no rotary embedding and keep any "
        "rank.",
    ),
    "glm": Architecture(
        pairs="neighbours",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
        note=f"{BESIDE} Partial rotary embedding as in stablelm.",
    ),
    "glm4": Architecture(
        pairs="neighbours",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
        norm_after=("post_self_attn_layernorm", "post_mlp_layernorm"),
        sequential=None,
        note="As glm, with norms after the components, too.",
    ),
    "ernie4_5": Architecture(pairs="neighbours", note=BESIDE),
    "exaone4": Architecture(
        norms=("q_norm", "k_norm"),
        norm_after=NORMS_AFTER,
        rotated=lambda attention: attention.sliding_window is None or attention.is_sliding,
        sequential=None,
        note=f"{NORMED} Norms stand after the components.",
    ),
    "smollm3": Architecture(
        note="Layers without rotary embedding keep any rank, the others whole rotary pairs."
    ),
    "granite": Architecture(
        residual="residual_multiplier",
        sequential=None,
        note="Multipliers of the embedding, the scores, the residual stream and the logits stay "
        "outside the projections.",
    ),
    "arcee": Architecture(gate=None, note="The MLP has no gate: the square of a ReLU."),
    "stablelm": Architecture(
        sequential=None,
        requires={"qk_layernorm": False},
        note="Columns of a head beyond the partial rotary embedding count as pairs of angle zero; "
        "a3 and fused make two directions of each. Parallel residual or not follows the config.",
    ),
    "nemotron": Architecture(
        gate=None,
        sequential=None,
        note="The MLP has no gate: the square of a ReLU. Partial rotary embedding as in stablelm.",
    ),
    "starcoder2": Architecture(up="mlp.c_fc", down="mlp.c_proj", gate=None),
} | MIXTURES


# Families that people ask for and the table has no place for, and why
MISFITS = {
    "gemma3n": "with images and sounds it needs packages of its own; save its language model "
    "alone, a gemma3n_text",
    "llama4": "with images it does not run in transformers 5.24; save its language model alone, a "
    "llama4_text",
    "youtu": "it is what `export --format mla` writes for other programs; load the checkpoint that "
    "it was made of",
}

# Multimodal models and the path of their language model, of a family above; the rest is unchanged.
MULTIMODAL = dict.fromkeys(
    ("llava", "llava_next", "llava_onevision", "vipllava", "gemma3", "gemma4", "mistral3"),
    "model.language_model",
)
# In their masks the patches of an image see one another in both directions.
BOTH_WAYS = ("gemma3", "gemma4")


def text_config(network: PreTrainedModel) -> Any:
    """The config of the language model: the network's own, or one inside a multimodal config."""
    return network.config.get_text_config()


def architecture_by(text: PretrainedConfig) -> Architecture:
    """The family's row for the config of a language model."""
    field, mixture = SOMETIMES.get(text.model_type, ("", None))
    if mixture is not None and getattr(text, field):
        return mixture
    return ARCHITECTURES[text.model_type]


def architecture_of(network: PreTrainedModel) -> Architecture:
    """The family's row for a loaded network; of the language model inside a multimodal one."""
    row = architecture_by(text_config(network))
    inside = MULTIMODAL.get(network.config.model_type)
    if inside is None:
        return row
    return replace(row, layers=f"{inside}.{row.layers.partition('.')[2]}")


def residual_multiplier(network: PreTrainedModel) -> float:
    """What the output of a component is multiplied by before it is added to the stream."""
    name = architecture_of(network).residual
    return 1.0 if name is None else float(getattr(text_config(network), name))


def norm_after(network: PreTrainedModel, layer: nn.Module, component: str) -> nn.Module | None:
    """The norm of what a component ("attention", "mlp") of a layer gives, before it is added to the
    stream; None where there is none.
    """
    paths = architecture_of(network).norm_after
    if paths is None:
        return None
    return layer.get_submodule(paths[("attention", "mlp").index(component)])


def reads_tokens(network: PreTrainedModel) -> bool:
    """Whether layers are called with what depends on the tokens, see `Architecture.by_token`."""
    text = text_config(network)
    return any(getattr(text, name) for name in architecture_of(network).by_token)


def active_stream(network: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The residual stream that attention and MLP read and change, [b, t, d], of the hidden states
    of a layer, see `Architecture.active`.
    """
    field = architecture_of(network).active
    return hidden if field is None else hidden[getattr(text_config(network), field)]


def decoder_layers(network: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a loaded network, in order."""
    layers: nn.ModuleList = network.get_submodule(architecture_of(network).layers)
    return layers
