"""What replaces a native module once its shape has changed: smaller tensors, the same
arithmetic, the same KV cache interface.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..layer import MLP, Attention
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
    """Attention whose heads are narrower than the model's: qk_size for queries and keys, v_size for
    values and outputs.

    The cache holds n_kv * (qk_size + v_size) numbers per token and nothing else; n_kv * qk_size +
    n_q * v_size where the heads are `summed`, each with values of its own. Kept rotary pairs are
    turned by the angles of the pairs they came from (`rotary_pairs`, per kv head), and the score
    scale stays that of the original head size.
    Norms of queries and keys, where the family has them, are the native modules; score caps and
    windows are as in the native attention.
    """

    is_causal = True
    latent = False

    def __init__(self, sizes: Mapping[str, Any], layer_idx: int) -> None:
        super().__init__()
        self.n_q, self.n_kv = sizes["n_q"], sizes["n_kv"]
        self.head_size, self.qk_size, self.v_size = (
            sizes["head_size"],
            sizes["qk_size"],
            sizes["v_size"],
        )
        self.scale, self.position, self.qk_norm = (
            sizes["scale"],
            sizes["position"],
            sizes["qk_norm"],
        )
        self.softcap, self.window = sizes["softcap"], sizes["window"]
        self.summed = sizes["summed"]
        self.layer_idx = layer_idx
        self.group = self.n_q // self.n_kv
        self.num_key_value_groups = (
            1 if self.summed else self.group
        )  # the attention function repeats keys and values so often
        pairs = (
            torch.zeros(self.n_kv, self.qk_size // 2, dtype=torch.int32)
            if sizes["selected_pairs"]
            else None
        )
        self.register_buffer("rotary_pairs", pairs)

    def sizes(self) -> dict[str, Any]:
        """What `__init__` needs to make an empty module of this shape; JSON-able."""
        return {name: getattr(self, name) for name in SIZES} | {
            "selected_pairs": self.rotary_pairs is not None
        }

    def fill(self, value: Attention) -> "CompressedAttention":
        """Take over the tensors of an attention value of these sizes; norms of queries and keys
        are the caller's to set.
        """
        if value.rotary_pairs is not None:
            self.rotary_pairs = value.rotary_pairs.to(
                dtype=torch.int32, device=value.k.weight.device
            )
        for name, projection in projection_modules(
            {name: getattr(value, name) for name in "qkvo"}
        ).items():
            setattr(self, f"{name}_proj", projection)
        return self

    def states(
        self, name: str, projected: Tensor, position_embeddings: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Queries or keys ("q", "k") as they enter the score.

        projected [b, t, n * qk_size] -> [b, n, t, qk_size].
        """
        count, (b, t, _) = self.n_q if name == "q" else self.n_kv, projected.shape
        if self.qk_norm == "width":
            projected = getattr(self, f"{name}_norm")(projected)
        states = projected.view(b, t, count, self.qk_size)
        if self.qk_norm == "head":
            states = getattr(self, f"{name}_norm")(states)
        states = states.transpose(1, 2)
        if self.position != "rotary":
            return states
        cos, sin = (
            self._angles(table) for table in whole_head(*position_embeddings, self.head_size)
        )
        if cos.shape[1] not in (1, count):
            cos, sin = (table.repeat_interleave(self.group, dim=1) for table in (cos, sin))
        return rotated(states, cos, sin)

    def _angles(self, table: Tensor) -> Tensor:
        """cos or sin [b, t, head_size] -> [b, n_kv or 1, t, qk_size], the columns of the kept
        pairs.
        """
        if self.rotary_pairs is None:
            return table.unsqueeze(1)
        pairs = self.rotary_pairs.long()
        columns = torch.cat((pairs, pairs + self.head_size // 2), dim=1)  # [n_kv, qk_size]
        return table[..., columns].transpose(1, 2)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,  # Bloom alone gives it, and expects it added
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        layer_past: Any = None,  # the same under its older name
        alibi: Tensor | None = None,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        b, t, _d = hidden_states.shape
        cache = layer_past if past_key_values is None else past_key_values
        q, k, v = self.project(hidden_states, position_embeddings, cache)
        mask = attention_mask
        if alibi is not None:  # Bloom: [b * n_q, 1 or t, keys], and a mask that is added
            mask = _add(alibi.view(b, self.n_q, -1, alibi.shape[-1]), mask)
        if (
            position_bias is not None
        ):  # MPT: [n_q, 1, positions], and a mask that is true where it hides
            mask = _add(position_bias[None, :, :, -k.shape[2] :], None if mask is None else ~mask)
        if self.window is not None:
            mask = _add(_window(self.window, t, k.shape[2], q), mask)
        if self.summed:
            k = k.repeat_interleave(self.group, dim=1)
        out = self._attend(q, k, v, mask)  # [b, t, n_q, v_size]
        out = self.o_proj(out.sum(2) if self.summed else out.reshape(b, t, self.n_q * self.v_size))
        return (out if residual is None else out + residual), None

    def project(
        self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x [b, t, d], and keys and values of all T tokens, as they are attended with.

        [b, heads, t or T, size] each.
        """
        q = self.states("q", self.q_proj(x), position_embeddings)
        k = self.states("k", self.k_proj(x), position_embeddings)
        v = (
            self.v_proj(x)
            .unflatten(-1, (self.n_q if self.summed else self.n_kv, self.v_size))
            .transpose(1, 2)
        )
        return (q, k, v) if cache is None else (q, *cache.update(k, v, self.layer_idx))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if self.softcap is None:
            mask = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
            return sdpa_attention_forward(self, q, k, v, mask, dropout=0.0, scaling=self.scale)[0]
        k, v = (states.repeat_interleave(self.num_key_value_groups, dim=1) for states in (k, v))
        scores = self.softcap * torch.tanh(q @ k.mT * self.scale / self.softcap)
        weights = torch.softmax(_add(scores, mask), dim=-1, dtype=torch.float32).to(v.dtype)
        return (weights @ v).transpose(1, 2)


def whole_head(cos: Tensor, sin: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Tables of angles [b, t, rotary part] for a head laid out as (first halves, second halves):
    pairs beyond the part do not turn.
    """
    half, rest = cos.shape[-1] // 2, (head_size - cos.shape[-1]) // 2
    if not rest:
        return cos, sin
    one, zero = cos.new_ones(*cos.shape[:-1], rest), cos.new_zeros(*cos.shape[:-1], rest)
    return tuple(
        torch.cat((t[..., :half], pad, t[..., half:], pad), dim=-1)
        for t, pad in ((cos, one), (sin, zero))
    )


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States [..., size] with their pairs (j, j + size / 2) turned; cos and sin broadcast
    against them.
    """
    half = states.shape[-1] // 2
    return states * cos + torch.cat((-states[..., half:], states[..., :half]), dim=-1) * sin


def _add(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores under a mask: added where it is numbers, hidden where it is false."""
    if mask is None:
        return scores
    return (
        scores + mask
        if mask.is_floating_point()
        else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    )


def _window(size: int, queries: int, keys: int, like: Tensor) -> Tensor:
    """Zero for the last `size` keys up to each query, the least number elsewhere.

    [1, 1, queries, keys]
    """
    distance = torch.arange(keys - queries, keys, device=like.device).unsqueeze(1) - torch.arange(
        keys, device=like.device
    )
    hidden = (distance < 0) | (distance >= size)
    return torch.zeros(1, 1, queries, keys, dtype=like.dtype, device=like.device).masked_fill(
        hidden, torch.finfo(like.dtype).min
    )


class CompressedMLP(nn.Module):
    """A gated MLP with gate and up apart, for families whose own module has them in one matrix."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.act = ACT2FN[activation]

    @classmethod
    def of(cls, value: MLP) -> "CompressedMLP":
        """The module of an MLP value."""
        module = cls(value.activation)
        for name, projection in projection_modules(
            {"gate": value.gate, "up": value.up, "down": value.down}
        ).items():
            setattr(module, f"{name}_proj", projection)
        return module

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))
