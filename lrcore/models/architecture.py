"""A model family as data: where a decoder layer keeps its projections, norms and options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..layer import Tables


def _uses_rope(attention: Any) -> bool:
    return bool(getattr(attention, "use_rope", True))


@dataclass(frozen=True)
class Architecture:
    """A model family as data.

    Paths are dotted and relative: layers to the model, norms to the attention, the rest to one
    decoder layer. Projections that share a path share a matrix.
    qkv: layout of the rows, "apart" (three matrices), "stacked" (all of q, then k, then v) or
    "by_group" (the queries, the key and the value of the first kv head, then of the second). A gate
    that shares the path of `up` comes before it.
    pairs: the columns of a rotary pair in a head, "halves" (j and j + half) or "neighbours" (2 j
    and 2 j + 1); tables: the same of the cos and sin that attention is given, or "once" where they
    have one column for both of a pair.
    rotated: whether an attention module rotates, where only some of a network's do.
    scale: field of the attention module, or what gives it of the module; None where scores are not
    scaled. activation, softcap, window: fields of the config.
    norms: of queries and keys before rotary, over a head or over the whole width (norm_over).
    kept: attention that stays the family's own module, of which no more than matrices are replaced;
    factors: the paths of its projections by name where it is multi-head latent attention.
    kernel: the attn_implementation of transformers that the family runs with.
    experts: some or all MLPs are mixtures of experts, with gated MLPs stacked in the module
    `experts` of the MLP; router: the path of the module that chooses between them. norm_after:
    the norms of what attention and MLP give before it is added to the stream, None where there are
    none; residual: field of the config that it is multiplied by before that, None where it is added
    as it is. adds_more: a layer adds to the stream, or changes of it, more than these two give.
    width: field of the config with the MLP's width, None where it follows from another field, or no
    layer has one; expert_width: that of the routed experts, None where other sizes follow from it.
    requires: fields of the config and their only supported values; a tuple is of several. note:
    shown to users.
    by_token: fields of the config; where one is not 0, layers are called with what depends on the
    tokens: embeddings of single layers, keys and values of an earlier one.
    active: field of the config with the place of the residual stream that attention and MLP read
    and change, of layers that carry several, [streams, b, t, d]; None where there is one, [b, t,
    d].
    block_norms: the norms before attention and MLP. last_norm: the norm before the head.
    norm_offset: added to the weight of a norm. positions: an embedding added to that of the tokens.
    feed: the parts of an MLP that is no module of its own.
    sequential: fields of the config with which a layer is attention and then MLP, each
    x + f(norm(x)); None where it never is.
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
    qkv: Literal["apart", "stacked", "by_group"] = "apart"
    position: Literal["none", "rotary"] = "rotary"
    pairs: Literal["halves", "neighbours"] = "halves"
    tables: Tables = "halves"
    rotated: Callable[[Any], bool] = _uses_rope
    norms: tuple[str, str] | None = None
    norm_over: Literal["head", "width"] = "head"
    scale: str | Callable[[Any], float] | None = "scaling"
    activation: str = "hidden_act"
    softcap: str | None = None
    window: str | None = None
    kept: bool = False
    factors: Mapping[str, str] | None = None
    kernel: Literal["sdpa", "eager"] = "sdpa"
    layer_returns: Literal["tensor", "tuple"] = "tensor"
    width: str | None = "intermediate_size"
    experts: bool = False
    router: str = "mlp.gate"
    expert_width: str | None = None
    norm_after: tuple[str, str] | None = None
    adds_more: bool = False
    residual: str | None = None
    by_token: tuple[str, ...] = ()
    active: str | None = None
    block_norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    last_norm: str = "model.norm"
    norm_offset: float = 0.0
    positions: str | None = None
    feed: tuple[str, ...] = ()
    sequential: Mapping[str, Any] | None = field(default_factory=dict)
    requires: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def supported(self, field: str) -> tuple[Any, ...]:
        """The values of a field in `requires`."""
        values = self.requires[field]
        return values if isinstance(values, tuple) else (values,)

    def paths(self) -> dict[str, str]:
        """The paths of the projections by name, in forward order."""
        own = {"q": self.q, "k": self.k, "v": self.v, "o": self.o}
        named = {
            **(own if self.factors is None else self.factors),
            "gate": self.gate,
            "up": self.up,
            "down": self.down,
        }
        return {name: path for name, path in named.items() if path is not None}
