"""The description of a model family: module paths, weight layouts and options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from ..layers.layer import Tables


def module_at(layer: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule at a path, or None."""
    try:
        return layer.get_submodule(path)
    except AttributeError:
        return None


def _uses_rope(attention: Any) -> bool:
    return bool(getattr(attention, "use_rope", True))


def rotated_in_windows(attention: Any) -> bool:
    """Return False for a layer with complete attention in a model that also has windows."""
    return attention.sliding_window is None or bool(attention.is_sliding)


@dataclass(frozen=True)
class Architecture:
    """A model family: the paths of its modules, the layout of its weights, and its options.

    Paths are dotted. `layers`, `last_norm` and `positions` are relative to the model, `norms` to
    the attention module, the remaining paths to a decoder layer. Projections with the same path
    share a matrix; in a matrix of gate and up, the gate's rows come first.

    qkv: row layout of queries, keys and values: "separate" (three matrices), "stacked" (all of q,
        then k, then v) or "by_group" (queries, key and value of the first kv head, then of the
        next).
    pairs: columns of a rotary pair in a head: "halves" (j and j + half) or "interleaved" (2 j and
        2 j + 1).
    tables: layout of the cos and sin tables: "halves", "neighbours" (interleaved) or "once" (a
        single column per pair).
    rotated: function of an attention module; False if the module applies no rotary embedding.
    norms: norms of queries and keys before the rotary embedding, over a head or over the full width
        (`norm_over`).
    scale: attribute of the attention module, or a function of the module; None if scores are not
        scaled.
    activation, softcap, window: config fields.
    native_attention: the attention module of the family is never replaced, only matrices in it.
    factors: paths of the attention's projections by name, for native attention.
    attention_returns: number of outputs of the attention module.
    passes: argument of a layer that is the second output of the layer before it; None if layers
        pass only hidden states.
    mixer: paths of the projections by name of a mixer, which takes the place of attention in some
        layers: linear attention, Mamba, a short convolution. It is a native module, too. "o" is its
        output projection; those named in `MIXER_INPUTS` read its input. None if all layers have
        attention.
    has_heads: False in the row of a layer that has a mixer, or neither mixer nor attention; see
        `of_layer`.
    kernel: `attn_implementation` of transformers.
    width: config field of the MLP width; None if the width is derived from another field or differs
        by layer.
    experts: some or all MLPs are mixtures of experts; the stacked experts are the submodule
        `experts` of the MLP.
    router: path of the module that selects the experts.
    expert_width: config field of the routed experts' width; None if it determines other sizes.
    expert_activation: activation of the routed experts, see `activation`; None for the same.
    norm_after: norms of the outputs of attention (or mixer) and MLP before the residual addition; a
        layer that lacks one of them has none.
    has_further_updates: a layer changes the residual stream by more than attention and MLP.
    residual: config field of the factor that scales the outputs of attention and MLP, or a function
        of the config; None for 1.
    token_inputs: config fields; if any is nonzero, layers take inputs that depend on the tokens:
        embeddings per layer, or keys and values of an earlier layer.
    active_stream: config field with the index of the residual stream that attention and MLP read
        and change, for hidden states [streams, b, t, d]; None for a single stream [b, t, d].
    block_norms: norms before attention and MLP.
    last_norm: norm before the head.
    norm_offset: constant that is added to the weight of a norm.
    positions: learned position embedding.
    mlp_parts: modules of the MLP, if no single module contains the MLP.
    sequential: config values with which a layer computes attention and then MLP, each as
        x + f(norm(x)); None if it never does.
    is_inferred: the row was not written for the family but found by structure, see by_structure.py.
    requires: config fields and their supported values; a tuple lists several values.
    note: remark in the documentation.
    """

    layers: str = "model.layers"
    attention: str = "self_attn"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    mlp: str = "mlp"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate: str | None = "mlp.gate_proj"
    qkv: Literal["separate", "stacked", "by_group"] = "separate"
    position: Literal["none", "rotary"] = "rotary"
    pairs: Literal["halves", "interleaved"] = "halves"
    tables: Tables = "halves"
    rotated: Callable[[Any], bool] = _uses_rope
    norms: tuple[str, str] | None = None
    norm_over: Literal["head", "width"] = "head"
    scale: str | Callable[[Any], float] | None = "scaling"
    activation: str = "hidden_act"
    softcap: str | None = None
    window: str | None = None
    native_attention: bool = False
    factors: Mapping[str, str] | None = None
    attention_returns: int = 2
    passes: str | None = None
    mixer: Mapping[str, str] | None = None
    has_heads: bool = True
    kernel: Literal["sdpa", "eager"] = "sdpa"
    layer_returns: Literal["tensor", "tuple"] = "tensor"
    width: str | None = "intermediate_size"
    experts: bool = False
    router: str = "mlp.gate"
    expert_width: str | None = None
    expert_activation: str | None = None
    norm_after: tuple[str, str] | None = None
    has_further_updates: bool = False
    residual: str | Callable[[Any], float] | None = None
    token_inputs: tuple[str, ...] = ()
    active_stream: str | None = None
    block_norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    last_norm: str = "model.norm"
    norm_offset: float = 0.0
    positions: str | None = None
    mlp_parts: tuple[str, ...] = ()
    sequential: Mapping[str, Any] | None = field(default_factory=dict)
    is_inferred: bool = False
    requires: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def supported(self, field: str) -> tuple[Any, ...]:
        """Return the supported values of a config field in `requires`."""
        values = self.requires[field]
        return values if isinstance(values, tuple) else (values,)

    def of_layer(self, layer: nn.Module) -> "Architecture":
        """Return the row of a decoder layer, in which `attention` is the path of its mixer, if any.

        A layer without mixer and attention, such as a lone MLP, is its own attention, with no
        projections.
        """
        if self.mixer is None:
            return self
        has_mixer = all(module_at(layer, path) is not None for path in self.mixer.values())
        read = f"{self.attention}.k_proj" if self.factors is None else self.factors["o"]
        if not has_mixer and module_at(layer, read) is not None:
            return self
        factors = self.mixer if has_mixer else {}
        has_norms = all(module_at(layer, path) is not None for path in self.norm_after or ())
        return replace(
            self,
            attention=factors["o"].rpartition(".")[0] if factors else "",
            native_attention=True,
            factors=factors,
            mixer=None,
            has_heads=False,
            position="none",
            norms=None,
            norm_after=self.norm_after if has_norms else None,
            scale=None,
        )

    def paths(self) -> dict[str, str]:
        """Return the paths of the projections by name, in forward order."""
        separate = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}
        named = {
            **(separate if self.factors is None else self.factors),
            "gate": self.gate,
            "up": self.up,
            "down": self.down,
        }
        return {name: path for name, path in named.items() if path}


# Fields and notes that several families share
NATIVE_ATTENTION: dict[str, Any] = {
    "native_attention": True,
    "factors": {name: f"self_attn.{name}_proj" for name in "qkvo"},
}
NATIVE_ATTENTION_NOTE = (
    "Attention and its cache are not changed: its four matrices can be low-rank pairs."
)
LATENT_ATTENTION: dict[str, Any] = {
    "native_attention": True,
    "factors": {
        "q": "self_attn.q_proj",
        "q_a": "self_attn.q_a_proj",
        "q_b": "self_attn.q_b_proj",
        "kv_a": "self_attn.kv_a_proj_with_mqa",
        "kv_b": "self_attn.kv_b_proj",
        "o": "self_attn.o_proj",
    },
}
LATENT_ATTENTION_NOTE = (
    "Multi-head latent attention and its cache are not changed: the matrices into and out of the "
    "latents (`q_a`, `q_b`, `kv_a`, `kv_b`) and the output projection can be low-rank pairs."
)
NORM_AFTER_ROTATION_NOTE = "Queries and keys are normalized per head after the rotary embedding."

# Config fields that make layers take inputs that depend on the tokens
TOKEN_INPUTS = ("hidden_size_per_layer_input", "num_kv_shared_layers")
# Norms of the outputs of attention and MLP, before they are added to the residual stream
NORMS_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")

QK_NORM_NOTE = (
    "Queries and keys are normalized per head, which a narrower head would change: their matrices "
    "can be low-rank pairs before the norm."
)
WIDE_QK_NORM_NOTE = (
    "Queries and keys are normalized over all heads together, which narrower heads would change: "
    "their matrices can be low-rank pairs before the norm."
)
INTERLEAVED_NOTE = (
    "Rotary pairs are interleaved in a head; compressed attention orders them as in Llama."
)
