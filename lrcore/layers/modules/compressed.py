"""Compressed attention, MLP and experts, with the arithmetic and KV cache of native modules."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..layer import MLP, Attention, Experts, gate_function, gated_states
from .projections import projection_modules
from .rotary import full_head_tables, in_halves, rotary_tables, rotated

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

    The cache holds n_kv * (qk_size + v_size) numbers per token, or n_kv * qk_size + n_q * v_size if
    heads are `summed`, with separate values per query head. Retained rotary pairs are rotated by
    the angles of the original pairs (`rotary_pairs`, per kv head; -1 for a pair without positions),
    and the score scale is that of the original head size. If heads were removed, `kept_heads`
    selects the biases per head that the family adds to the scores. The norms of queries and keys
    are the native modules, and so are `sinks` [heads], an additional score per head that belongs to
    no key (gpt-oss). Softcap and sliding window are as in the native attention.
    """

    is_causal = True
    latent = ""
    fused = True  # pad states to the shape that PyTorch's fused kernels require
    rotary_pairs: Tensor | None
    kept_heads: Tensor | None
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module

    def __init__(self, sizes: Mapping[str, Any], layer_idx: int) -> None:
        nn.Module.__init__(self)  # skip the family's __init__, see `subclass_of_native`
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
        # read by transformers' attention function: number of repetitions of keys and values
        self.num_key_value_groups = 1 if self.summed else self.group
        pairs = None
        if sizes["selected_pairs"]:
            pairs = torch.zeros(self.n_kv, self.qk_size // 2, dtype=torch.int32)
        self.register_buffer("rotary_pairs", pairs)
        # the buffer `rotary_pairs` and the result of `_kept_columns` for it
        self._columns: tuple[Tensor, Tensor, Tensor | None] | None = None
        self.tables = sizes.get("tables", "halves")
        heads = torch.zeros(self.n_q, dtype=torch.int32) if sizes["selected_heads"] else None
        self.register_buffer("kept_heads", heads)

    def sizes(self) -> dict[str, Any]:
        """Return the JSON-able sizes from which `__init__` makes an empty module of this shape."""
        sizes = {name: getattr(self, name) for name in SIZES}
        sizes |= {"tables": self.tables} if self.tables != "halves" else {}
        return sizes | {
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
        """Return the module that produces queries or keys ("q", "k") before norm and rotation."""
        module: nn.Module = getattr(self, f"{name}_proj")
        return module

    def states(
        self, name: str, projected: Tensor, position_embeddings: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Return queries or keys ("q", "k") as they enter the score.

        projected [b, t, n * qk_size] -> [b, n, t, qk_size].
        """
        return self._rotated(self._by_head(name, projected), self._angles(position_embeddings))

    def _by_head(self, name: str, projected: Tensor) -> Tensor:
        """Return `states` before the rotation, [b, t, n * qk_size] -> [b, n, t, qk_size]."""
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
        """Return cos and sin of the retained pairs, [b, n_kv or 1, t, qk_size] each; None without
        rotary.
        """
        if self.position != "rotary":
            return None
        assert position_embeddings is not None
        cos, sin = full_head_tables(*self.in_halves(position_embeddings), self.head_size)
        if self.rotary_pairs is None:
            return cos.unsqueeze(1), sin.unsqueeze(1)
        columns, without_position = self._kept_columns(self.rotary_pairs)
        cos, sin = (table[..., columns].transpose(1, 2) for table in (cos, sin))
        if without_position is None:
            return cos, sin
        # 1, or the factor of queries and keys under scaled frequencies (YaRN)
        identity = getattr(getattr(self, "rotary", None), "attention_scaling", 1.0)
        return torch.where(without_position, identity, cos), torch.where(without_position, 0.0, sin)

    def _kept_columns(self, pairs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the table columns of `rotary_pairs` [n_kv, qk_size], and a mask of pairs without
        positions.

        The mask is [n_kv, 1, qk_size], or None if all pairs have positions. Computed once: for a
        single token this takes longer than the tables themselves.
        """
        if self._columns is not None and self._columns[0] is pairs:
            return self._columns[1:]
        is_symbolic = torch.compiler.is_compiling() or pairs.is_meta  # values cannot be read
        with torch.inference_mode(False):  # so that training can use the cached columns
            pair_indices = pairs.long()  # ONNX Runtime gathers by 64-bit integers only
            columns = torch.cat((pair_indices, pair_indices + self.head_size // 2), dim=1)
            without_position: Tensor | None = (pair_indices < 0).repeat(1, 2).unsqueeze(1)
        if is_symbolic:
            return columns, without_position
        without_position = without_position if bool((pair_indices < 0).any()) else None
        self._columns = pairs, columns, without_position
        return columns, without_position

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._columns = None  # the pairs may have changed

    def _rotated(self, states: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """Rotate states [b, n, t, qk_size] by `_angles`."""
        if angles is None:
            return states
        cos, sin = angles
        if cos.shape[1] in (1, states.shape[1]):
            return rotated(states, cos, sin)
        by_group = states.unflatten(1, (cos.shape[1], -1))  # the heads of a group have one angle
        return rotated(by_group, cos.unsqueeze(2), sin.unsqueeze(2)).flatten(1, 2)

    def in_halves(self, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return cos and sin as (first halves, second halves), [b, t, rotary part]."""
        return in_halves(self.tables, *tables)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention's output [b, t, d], and the weights or None. hidden_states [b, t,
        d].

        Called like native modules. The weights [b, n_q, t, T] are returned if `output_attentions`
        requests them from an eager attention. residual [b, t, d]: passed by Bloom only, which
        expects it to be added. arguments: the cache, named `cache`, `past_key_values` or
        `layer_past` depending on version and family of transformers; `position_ids` for attention
        with stored tables (GPT-J), `alibi` (Bloom) and `position_bias` (MPT). Other arguments are
        ignored.
        """
        b, t, _ = hidden_states.shape
        cache = next((value for value in arguments.values() if isinstance(value, Cache)), None)
        angles = rotary_tables(
            self, position_embeddings, arguments.get("position_ids"), hidden_states.dtype
        )
        q, k, v = self.project(hidden_states, angles, cache)
        mask, alibi, bias = attention_mask, arguments.get("alibi"), arguments.get("position_bias")
        if alibi is not None:  # [b * heads, 1 or t, keys]; Bloom's mask is added
            mask = _add(self._of_kept_heads(alibi.unflatten(0, (b, -1))), mask)
        if bias is not None:  # [heads, 1, positions]; MPT's mask is true where it hides
            bias = self._of_kept_heads(bias[None, :, :, -k.shape[2] :])
            mask = _add(bias, None if mask is None else ~mask)
        if self.window is not None:
            mask = _add(_window(self.window, t, k.shape[2], q), mask)
        if self.summed:
            k = k.repeat_interleave(self.group, dim=1)
        # [b, t, n_q, v_size]
        out, weights = self._attend(
            q, k, v, mask, self._weighted(arguments.get("output_attentions"))
        )
        out = self.o_proj(out.sum(2) if self.summed else out.reshape(b, t, self.n_q * self.v_size))
        return (out if residual is None else out + residual), weights

    def _weighted(self, requested: bool | None) -> bool:
        """Return True if the attention weights are to be returned.

        requested: None if the family does not pass the request on. An eager attention then returns
        the weights, like native modules.
        """
        is_eager = getattr(self.config, "_attn_implementation", None) == "eager"
        return is_eager and (requested is not False or bool(self.config.output_attentions))

    def _of_kept_heads(self, per_head: Tensor) -> Tensor:
        """Select the retained heads from a tensor [b, heads, ...] of all original heads."""
        return per_head if self.kept_heads is None else per_head[:, self.kept_heads.long()]

    def project(
        self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of x [b, t, d], and keys and values of all T tokens in the cache and
        x.

        q [b, n_q, t, size], k and v [b, heads, T, size], as they enter the attention.
        """
        angles = self._angles(position_embeddings)  # shared by queries and keys
        q = self._rotated(self._by_head("q", self.q_proj(x)), angles)
        k = self._rotated(self._by_head("k", self.k_proj(x)), angles)
        heads = self.n_q if self.summed else self.n_kv
        v = self.v_proj(x).unflatten(-1, (heads, self.v_size)).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        return q, k, v

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weighted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the heads' outputs [b, t, n_q, size], and their weights if `weighted`."""
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
        """Return the softmax of scores [b, n_q, t, T] over the keys, computed in a dtype.

        The sink of a head takes part in the softmax, so the weights of the keys sum to less than 1.
        """
        if self.sinks is None:
            return torch.softmax(scores, dim=-1, dtype=dtype)
        sinks = self._of_kept_heads(self.sinks.view(1, -1, 1, 1)).to(scores)
        all_scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
        return torch.softmax(all_scores, dim=-1, dtype=dtype)[..., :-1]

    def _masked(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Apply softcap and mask to scaled scores [b, n, t, T]."""
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return _add(scores, mask)


def of_one_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad queries and keys, or values, with zeros to a common size.

    PyTorch's fused kernels require a common size; attention takes several times as long without
    them. Scores do not change, and the outputs end in zeros. q [b, n, t, size], k [b, heads, T,
    size], v [b, heads, T, v_size]. A single query is not padded, because the copy of the cache
    would cost more.
    """
    missing = v.shape[-1] - k.shape[-1]
    if missing == 0 or q.shape[2] == 1:
        return q, k, v
    if missing < 0:
        return q, k, nn.functional.pad(v, (0, -missing))
    return nn.functional.pad(q, (0, missing)), nn.functional.pad(k, (0, missing)), v


def _add(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a mask [..., queries, keys] to scores [b, n, queries, keys].

    A floating-point mask is added; a bool mask hides the keys where it is False.
    """
    if mask is None:
        return scores
    if mask.is_floating_point():
        return scores + mask
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def _window(size: int, queries: int, keys: int, like: Tensor) -> Tensor:
    """Return an additive mask, [1, 1, queries, keys]: zero for the last `size` keys."""
    queried = torch.arange(keys - queries, keys, device=like.device).unsqueeze(1)
    distance = queried - torch.arange(keys, device=like.device)
    hidden = (distance < 0) | (distance >= size)
    mask = torch.zeros(1, 1, queries, keys, dtype=like.dtype, device=like.device)
    return mask.masked_fill(hidden, torch.finfo(like.dtype).min)


class CompressedMLP(nn.Module):
    """An MLP with separate matrices, for experts and for families that fuse gate and up."""

    gate_proj: nn.Module | None
    up_proj: nn.Module
    down_proj: nn.Module

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.act = ACT2FN[gate_function(activation)]
        self.gate_proj = None

    @classmethod
    def of(cls, value: MLP) -> "CompressedMLP":
        """Return the module of an MLP value."""
        module = cls(value.activation)
        for name, projection in projection_modules(value.matrices()).items():
            setattr(module, f"{name}_proj", projection)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[b, t, d] -> [b, t, d]."""
        up = self.up_proj(hidden_states)
        if self.gate_proj is None:
            inner = self.act(up)
        else:
            inner = gated_states(self.activation, self.act, self.gate_proj(hidden_states), up)
        out: Tensor = self.down_proj(inner)
        return out


class CompressedExperts(nn.ModuleList):
    """Routed experts with separate matrices, in place of a family's stacked matrices.

    identities: number of further experts, whose output is their input.
    """

    def __init__(self, activation: str, count: int, identities: int = 0) -> None:
        super().__init__(CompressedMLP(activation) for _ in range(count))
        self.activation = activation
        self.identities = identities

    @classmethod
    def of(cls, value: Experts) -> "CompressedExperts":
        """Return the module of the experts of a layer."""
        module = cls(value.mlps[0].activation, len(value.mlps), value.identities)
        for number, mlp in enumerate(value.mlps):
            module[number] = CompressedMLP.of(mlp)
        return module

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of the outputs of the experts that each token is routed to, [n,
        d].

        hidden_states [n, d]; top_k_index, top_k_weights [n, active]. Llama 4 passes only
        hidden_states [experts * n, d]: the inputs of each expert, scaled by the router, zero for
        tokens that do not reach it. The outputs are then returned in the same layout.
        """
        out = torch.zeros_like(hidden_states)
        if top_k_index is None or top_k_weights is None:
            sent = (hidden_states != 0).any(dim=-1)
            for number, output in enumerate(sent.view(len(self), -1)):
                rows = output.nonzero().squeeze(-1) + number * output.shape[0]
                out[rows] = self[number](hidden_states[rows]).to(out.dtype)
            return out
        for number in top_k_index.unique().tolist():
            tokens, positions = torch.where(top_k_index == number)
            inputs = hidden_states[tokens]
            output = self[number](inputs) if number < len(self) else inputs
            output = output * top_k_weights[tokens, positions].unsqueeze(-1)
            out.index_add_(0, tokens, output.to(out.dtype))
        return out
