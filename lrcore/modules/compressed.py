"""Replacements for native modules of another shape: the same arithmetic and KV cache interface."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..gates import clamped_swiglu, clamps_of
from ..layer import MLP, Attention, Experts
from .own_tables import tables_of
from .projections import projection_modules

SIZES = (
    "n_q",
    "n_kv",
    "head_size",
    "qk_size",
    "v_size",
    "scale",
    "position",
    "qk_norm",
    "softcap",
    "window",
    "latent",
    "summed",
)


class CompressedAttention(nn.Module):
    """Attention with narrower heads: qk_size for queries and keys, v_size for values and outputs.

    The cache holds n_kv * (qk_size + v_size) numbers per token; n_kv * qk_size + n_q * v_size where
    heads are `summed`, each with its own values. Kept rotary pairs are rotated by the angles of the
    original pairs (`rotary_pairs`, per kv head; -1 for a pair without positions), and the score
    scale stays that of the original head size. What a family adds to the scores head by head it
    makes for all of them; where heads were removed, those of `kept_heads` are taken from it. Norms
    of queries and keys are the native modules, and so are `sinks` [heads], one more score of every
    head that belongs to no key (gpt-oss); softcap and sliding window are as in the native
    attention.
    """

    is_causal = True
    latent = ""
    fused = True  # states are brought into the shape of PyTorch's fused kernels
    rotary_pairs: Tensor | None
    kept_heads: Tensor | None
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module

    def __init__(self, sizes: Mapping[str, Any], layer_idx: int) -> None:
        nn.Module.__init__(self)  # and no family's attention, see `standing_for`
        self.n_q, self.n_kv = sizes["n_q"], sizes["n_kv"]
        self.head_size, self.qk_size = sizes["head_size"], sizes["qk_size"]
        self.v_size, self.scale = sizes["v_size"], sizes["scale"]
        self.position, self.qk_norm = sizes["position"], sizes["qk_norm"]
        self.softcap, self.window = sizes["softcap"], sizes["window"]
        self.summed = sizes["summed"]
        self.layer_idx = layer_idx
        self.config: Any = None
        self.sinks: nn.Parameter | None = None
        self.group = self.n_q // self.n_kv
        # read by transformers' attention function: how often it repeats keys and values
        self.num_key_value_groups = 1 if self.summed else self.group
        pairs = None
        if sizes["selected_pairs"]:
            pairs = torch.zeros(self.n_kv, self.qk_size // 2, dtype=torch.int32)
        self.register_buffer("rotary_pairs", pairs)
        # the buffer that it was found for, and what `_kept_columns` gives
        self._columns: tuple[Tensor, Tensor, Tensor | None] | None = None
        # checkpoints of earlier versions do not name it
        fewer = sizes.get("selected_heads", False)
        beside = sizes.get("interleaved", False)  # what they say of tables
        self.tables = sizes.get("tables", "neighbours" if beside else "halves")
        kept = torch.zeros(self.n_q, dtype=torch.int32) if fewer else None
        self.register_buffer("kept_heads", kept)

    def sizes(self) -> dict[str, Any]:
        """The sizes from which `__init__` makes an empty module of this shape; JSON-able."""
        own = {name: getattr(self, name) for name in SIZES}
        own |= {"tables": self.tables} if self.tables != "halves" else {}
        return own | {
            "selected_pairs": self.rotary_pairs is not None,
            "selected_heads": self.kept_heads is not None,
        }

    def fill(self, value: Attention) -> "CompressedAttention":
        """Use the tensors of an attention value of these sizes; the caller sets q_norm, k_norm."""
        device = value.k.weight.device
        for name in ("rotary_pairs", "kept_heads"):
            if (indices := getattr(value, name)) is not None:
                setattr(self, name, indices.to(dtype=torch.int32, device=device))
        modules = projection_modules({name: getattr(value, name) for name in "qkvo"})
        for name, projection in modules.items():
            setattr(self, f"{name}_proj", projection)
        return self

    def states_module(self, name: str) -> nn.Module:
        """The module that gives queries or keys ("q", "k") before norm and rotation."""
        module: nn.Module = getattr(self, f"{name}_proj")
        return module

    def states(
        self, name: str, projected: Tensor, position_embeddings: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Queries or keys ("q", "k") as they enter the score.

        projected [b, t, n * qk_size] -> [b, n, t, qk_size].
        """
        return self._turned(self._by_head(name, projected), self._angles(position_embeddings))

    def _by_head(self, name: str, projected: Tensor) -> Tensor:
        """`states` before rotary, [b, t, n * qk_size] -> [b, n, t, qk_size]."""
        count, (b, t, _) = self.n_q if name == "q" else self.n_kv, projected.shape
        if self.qk_norm == "width":
            projected = getattr(self, f"{name}_norm")(projected)
        states = projected.view(b, t, count, self.qk_size)
        if self.qk_norm == "head":
            states = getattr(self, f"{name}_norm")(states)
        return states.transpose(1, 2)

    def _angles(
        self, position_embeddings: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor] | None:
        """cos and sin of the kept pairs, [b, n_kv or 1, t, qk_size] each; None without rotary."""
        if self.position != "rotary":
            return None
        assert position_embeddings is not None
        cos, sin = whole_head(*self.in_halves(position_embeddings), self.head_size)
        if self.rotary_pairs is None:
            return cos.unsqueeze(1), sin.unsqueeze(1)
        columns, without = self._kept_columns(self.rotary_pairs)
        cos, sin = (table[..., columns].transpose(1, 2) for table in (cos, sin))
        if without is None:
            return cos, sin
        # 1, or what scaled frequencies (YaRN) multiply queries and keys by
        still = getattr(getattr(self, "rotary", None), "attention_scaling", 1.0)
        return torch.where(without, still, cos), torch.where(without, 0.0, sin)

    def _kept_columns(self, pairs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The columns of the tables that `rotary_pairs` stand for, [n_kv, qk_size]; and where a
        pair has no position, [n_kv, 1, qk_size], None where all have one. Found once: for a single
        token this takes longer than the tables themselves.
        """
        if self._columns is not None and self._columns[0] is pairs:
            return self._columns[1:]
        unread = torch.compiler.is_compiling() or pairs.is_meta  # there are no values to look at
        with torch.inference_mode(False):  # training may use them, too
            own = pairs.long()  # ONNX Runtime gathers by no narrower integers
            columns = torch.cat((own, own + self.head_size // 2), dim=1)
            without: Tensor | None = (own < 0).repeat(1, 2).unsqueeze(1)
        if unread:
            return columns, without
        without = without if bool((own < 0).any()) else None
        self._columns = pairs, columns, without
        return columns, without

    def _load_from_state_dict(self, *given: Any, **named: Any) -> None:
        super()._load_from_state_dict(*given, **named)
        self._columns = None  # the pairs may be others now

    def _turned(self, states: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """States [b, n, t, qk_size] rotated by `_angles`."""
        if angles is None:
            return states
        cos, sin = angles
        if cos.shape[1] in (1, states.shape[1]):
            return rotated(states, cos, sin)
        by_group = states.unflatten(1, (cos.shape[1], -1))  # the heads of a group have one angle
        return rotated(by_group, cos.unsqueeze(2), sin.unsqueeze(2)).flatten(1, 2)

    def in_halves(self, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The network's cos and sin as (first halves, second halves), [b, t, rotary part]."""
        return in_halves(self.tables, *tables)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The attention's output [b, t, d] for hidden_states [b, t, d], called as native modules;
        and its weights [b, n_q, t, T] where `output_attentions` asks an eager attention for them.

        residual [b, t, d]: only from Bloom, which expects it added. others: the cache, which is
        `cache`, `past_key_values` or `layer_past` by version and family of transformers;
        `position_ids` where tables are its own (GPT-J), `alibi` (Bloom) and `position_bias` (MPT);
        the rest is ignored.
        """
        b, t, _ = hidden_states.shape
        cache = next((one for one in others.values() if isinstance(one, Cache)), None)
        angles = tables_of(
            self, position_embeddings, others.get("position_ids"), hidden_states.dtype
        )
        q, k, v = self.project(hidden_states, angles, cache)
        mask, alibi, bias = attention_mask, others.get("alibi"), others.get("position_bias")
        if alibi is not None:  # [b * heads, 1 or t, keys]; Bloom's mask is added
            mask = _add(self._left(alibi.unflatten(0, (b, -1))), mask)
        if bias is not None:  # [heads, 1, positions]; MPT's mask is true where it hides
            bias = self._left(bias[None, :, :, -k.shape[2] :])
            mask = _add(bias, None if mask is None else ~mask)
        if self.window is not None:
            mask = _add(_window(self.window, t, k.shape[2], q), mask)
        if self.summed:
            k = k.repeat_interleave(self.group, dim=1)
        # [b, t, n_q, v_size]
        out, weights = self._attend(q, k, v, mask, self._weighted(others.get("output_attentions")))
        out = self.o_proj(out.sum(2) if self.summed else out.reshape(b, t, self.n_q * self.v_size))
        return (out if residual is None else out + residual), weights

    def _weighted(self, asked: bool | None) -> bool:
        """Whether to return the attention weights; asked: None where the family does not hand down
        whether they are wanted. An eager attention gives them then, as native ones do.
        """
        eager = getattr(self.config, "_attn_implementation", None) == "eager"
        return eager and (asked is not False or bool(self.config.output_attentions))

    def _left(self, per_head: Tensor) -> Tensor:
        """Of something for every head there was, [b, heads, ...], what belongs to those left."""
        return per_head if self.kept_heads is None else per_head[:, self.kept_heads.long()]

    def project(
        self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x [b, t, d], and keys and values of all T tokens in the cache and x.

        Returns q [b, n_q, t, size], k and v [b, heads, T, size], as they enter the attention.
        """
        angles = self._angles(position_embeddings)  # of queries and keys: found once
        q = self._turned(self._by_head("q", self.q_proj(x)), angles)
        k = self._turned(self._by_head("k", self.k_proj(x)), angles)
        heads = self.n_q if self.summed else self.n_kv
        v = self.v_proj(x).unflatten(-1, (heads, self.v_size)).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        return q, k, v

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weighted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The heads' outputs [b, t, n_q, size], and their weights where those are asked for."""
        if self.softcap is None and not weighted and self.sinks is None:
            mask = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
            size = v.shape[-1]
            if self.fused:
                q, k, v = of_one_size(q, k, v)
            out, _ = sdpa_attention_forward(self, q, k, v, mask, dropout=0.0, scaling=self.scale)
            return out[..., :size], None
        k, v = (states.repeat_interleave(self.num_key_value_groups, dim=1) for states in (k, v))
        scores = self._masked(q @ k.mT * self.scale, mask)
        weights = self._weights(scores, torch.float32).to(v.dtype)
        return (weights @ v).transpose(1, 2), weights if weighted else None

    def _weights(self, scores: Tensor, dtype: torch.dtype) -> Tensor:
        """The softmax of scores [b, n_q, t, T] over the keys, computed in a dtype. The sink of a
        head takes part in it, so that the weights of its keys sum to less than 1.
        """
        if self.sinks is None:
            return torch.softmax(scores, dim=-1, dtype=dtype)
        own = self._left(self.sinks.view(1, -1, 1, 1)).to(scores)
        all_scores = torch.cat((scores, own.expand(*scores.shape[:-1], 1)), dim=-1)
        return torch.softmax(all_scores, dim=-1, dtype=dtype)[..., :-1]

    def _masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Scaled scores [b, n, t, T] after the softcap and under the mask."""
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return _add(scores, mask)


def of_one_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, or values, of several tokens, filled with zeros up to the size of the
    others: PyTorch's fused kernels take one size only, and attention takes several times as long
    without them. Scores stay as they are, and the outputs end in zeros.

    q [b, n, t, size], k [b, heads, T, size], v [b, heads, T, v_size]. A single query is as fast
    without; a copy of the cache would only cost it time.
    """
    missing = v.shape[-1] - k.shape[-1]
    if missing == 0 or q.shape[2] == 1:
        return q, k, v
    if missing < 0:
        return q, k, nn.functional.pad(v, (0, -missing))
    return nn.functional.pad(q, (0, missing)), nn.functional.pad(k, (0, missing)), v


def in_halves(layout: str, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Tables of a layout of `layer.Attention.tables` as (first halves, second halves).

    [b, t, size] each, or [b, t, size / 2] where they hold a pair "once" -> [b, t, size].
    """
    if layout == "halves":
        return cos, sin
    step = 2 if layout == "neighbours" else 1
    first, second = (torch.cat([one[..., ::step]] * 2, dim=-1) for one in (cos, sin))
    return first, second


def whole_head(cos: Tensor, sin: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """cos and sin of a partial rotary embedding, widened to a whole head with pairs of angle zero.

    [b, t, rotary part] -> [b, t, head_size] each, laid out as (first halves, second halves).
    """
    half, rest = cos.shape[-1] // 2, (head_size - cos.shape[-1]) // 2
    if not rest:
        return cos, sin
    one, zero = cos.new_ones(*cos.shape[:-1], rest), cos.new_zeros(*cos.shape[:-1], rest)
    return (
        torch.cat((cos[..., :half], one, cos[..., half:], one), dim=-1),
        torch.cat((sin[..., :half], zero, sin[..., half:], zero), dim=-1),
    )


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States [..., size] with their pairs (j, j + size / 2) rotated, in their dtype.

    cos and sin [..., size]; in float32 whatever the model's dtype for some families (OLMo 2).
    """
    half = states.shape[-1] // 2
    crossed = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return (states * cos + crossed * sin).to(states.dtype)


def _add(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores under a mask [..., queries, keys], as scores [b, n, queries, keys]: added if
    floating-point, else hidden where it is false.
    """
    if mask is None:
        return scores
    if mask.is_floating_point():
        return scores + mask
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def _window(size: int, queries: int, keys: int, like: Tensor) -> Tensor:
    """Sliding-window mask to be added, [1, 1, queries, keys]: zero for the last `size` keys."""
    queried = torch.arange(keys - queries, keys, device=like.device).unsqueeze(1)
    distance = queried - torch.arange(keys, device=like.device)
    hidden = (distance < 0) | (distance >= size)
    mask = torch.zeros(1, 1, queries, keys, dtype=like.dtype, device=like.device)
    return mask.masked_fill(hidden, torch.finfo(like.dtype).min)


class CompressedMLP(nn.Module):
    """A gated MLP with separate gate and up, for families whose own module fuses them, and for
    experts.
    """

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.clamps = clamps_of(activation)
        self.act = ACT2FN["silu" if self.clamps else activation]  # not read beside clamps

    @classmethod
    def of(cls, value: MLP) -> "CompressedMLP":
        """The module of an MLP value."""
        module = cls(value.activation)
        assert value.gate is not None
        parts = {"gate": value.gate, "up": value.up, "down": value.down}
        for name, projection in projection_modules(parts).items():
            setattr(module, f"{name}_proj", projection)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[b, t, d] -> [b, t, d]."""
        gate, up = self.gate_proj(hidden_states), self.up_proj(hidden_states)
        clamps = self.clamps
        inner = self.act(gate) * up if clamps is None else clamped_swiglu(gate, up, *clamps)
        out: Tensor = self.down_proj(inner)
        return out


class CompressedExperts(nn.ModuleList):
    """Routed experts with matrices of their own, in the place of a family's stacked ones."""

    def __init__(self, activation: str, count: int) -> None:
        super().__init__(CompressedMLP(activation) for _ in range(count))
        self.activation = activation

    @classmethod
    def of(cls, value: Experts) -> "CompressedExperts":
        """The module of the experts of a layer."""
        module = cls(value.mlps[0].activation, len(value.mlps))
        for number, mlp in enumerate(value.mlps):
            module[number] = CompressedMLP.of(mlp)
        return module

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
    ) -> Tensor:
        """The weighted sum of the outputs of the experts that every token is routed to.

        hidden_states [n, d]; top_k_index, top_k_weights [n, active]. Returns [n, d]. Without those,
        as Llama 4 calls its experts: hidden_states [experts * n, d] are the inputs of each, scaled
        by the router, zeros where a token does not reach it; returns the outputs, laid out alike.
        """
        out = torch.zeros_like(hidden_states)
        if top_k_index is None or top_k_weights is None:
            sent = (hidden_states != 0).any(dim=-1)
            for number, own in enumerate(sent.view(len(self), -1)):
                rows = own.nonzero().squeeze(-1) + number * own.shape[0]
                out[rows] = self[number](hidden_states[rows]).to(out.dtype)
            return out
        for number in top_k_index.unique().tolist():
            tokens, places = torch.where(top_k_index == number)
            own = self[number](hidden_states[tokens]) * top_k_weights[tokens, places].unsqueeze(-1)
            out.index_add_(0, tokens, own.to(out.dtype))
        return out
