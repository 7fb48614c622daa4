"""What several families share: attention that stays their own, of which matrices alone are
replaced, and notes.
"""

from typing import Any

LATENT: dict[str, Any] = {
    "kept": True,
    "factors": {
        "q": "self_attn.q_proj",
        "q_a": "self_attn.q_a_proj",
        "q_b": "self_attn.q_b_proj",
        "kv_a": "self_attn.kv_a_proj_with_mqa",
        "kv_b": "self_attn.kv_b_proj",
        "o": "self_attn.o_proj",
    },
    "experts": True,
    "width": None,  # that of shared experts follows from that of the others
}
LATENT_NOTE = (
    "Multi-head latent attention and its cache stay as they are: the matrices to its latents and "
    "from them (`q_a`, `q_b`, `kv_a`, `kv_b`) and the output projection can be low-rank pairs."
)

KEPT: dict[str, Any] = {
    "kept": True,
    "factors": {name: f"self_attn.{name}_proj" for name in "qkvo"},
}
KEPT_NOTE = "Attention and its cache stay as they are: its four matrices can be low-rank pairs."

# Fields of configs with which layers are called with what depends on the tokens
OWN_INPUTS = ("hidden_size_per_layer_input", "num_kv_shared_layers")
# Norms of what attention and MLP give, before it is added to the stream
NORMS_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")

NORMED = (
    "Queries and keys are normalised per head, which no narrower head keeps: their matrices can be "
    "low-rank pairs before the norm."
)
NORMED_TOGETHER = (
    "Queries and keys are normalised over all heads together, which no narrower head keeps: their "
    "matrices can be low-rank pairs before the norm."
)
BESIDE = "Rotary pairs stand side by side in a head; compressed attention has them as in Llama."
