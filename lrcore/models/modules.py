"""What replaces a native module once its shape has changed: smaller tensors, the same arithmetic, the same KV cache interface."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..layer import Attention
from .projections import projection_modules


class CompressedAttention(nn.Module):
    """Attention whose heads are narrower than the model's: qk_size for queries and keys, v_size for values and outputs.

    The cache holds n_kv * (qk_size + v_size) numbers per token and nothing else. Kept rotary pairs are turned by the angles of the
    pairs they came from (`rotary_pairs`, per kv head), and the score scale stays that of the original head size.
    """

    is_causal = True

    def __init__(self, sizes: dict[str, Any], layer_idx: int) -> None:
        super().__init__()
        self.n_q, self.n_kv = sizes["n_q"], sizes["n_kv"]
        self.head_size, self.qk_size, self.v_size = sizes["head_size"], sizes["qk_size"], sizes["v_size"]
        self.scale, self.position = sizes["scale"], sizes["position"]
        self.layer_idx = layer_idx
        self.num_key_value_groups = self.n_q // self.n_kv
        pairs = torch.zeros(self.n_kv, self.qk_size // 2, dtype=torch.int32) if sizes["selected_pairs"] else None
        self.register_buffer("rotary_pairs", pairs)

    def sizes(self) -> dict[str, Any]:
        """What `__init__` needs to make an empty module of this shape; JSON-able."""
        names = ("n_q", "n_kv", "head_size", "qk_size", "v_size", "scale", "position")
        return {name: getattr(self, name) for name in names} | {"selected_pairs": self.rotary_pairs is not None}

    @classmethod
    def of(cls, value: Attention, layer_idx: int) -> "CompressedAttention":
        """The module of an attention value."""
        names = ("n_q", "n_kv", "head_size", "qk_size", "v_size", "scale", "position")
        sizes = {name: getattr(value, name) for name in names} | {"selected_pairs": value.rotary_pairs is not None}
        module = cls(sizes, layer_idx)
        if value.rotary_pairs is not None:
            module.rotary_pairs = value.rotary_pairs.to(dtype=torch.int32, device=value.k.weight.device)
        for name, projection in projection_modules({name: getattr(value, name) for name in "qkvo"}).items():
            setattr(module, f"{name}_proj", projection)
        return module

    def _angles(self, table: Tensor) -> Tensor:
        """cos or sin [b, t, head_size] -> [b, n_kv or 1, t, qk_size], the columns of the kept pairs."""
        if self.rotary_pairs is None:
            return table.unsqueeze(1)
        pairs = self.rotary_pairs.long()
        columns = torch.cat((pairs, pairs + self.head_size // 2), dim=1)  # [n_kv, qk_size]
        return table[..., columns].transpose(1, 2)

    def _rotate(self, q: Tensor, k: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = (self._angles(table) for table in position_embeddings)
        k = k * cos + _rotate_half(k) * sin
        if cos.shape[1] > 1:
            cos, sin = (t.repeat_interleave(self.num_key_value_groups, dim=1) for t in (cos, sin))
        return q * cos + _rotate_half(q) * sin, k

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        b, t, _d = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, t, self.n_q, self.qk_size).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, t, self.n_kv, self.qk_size).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, t, self.n_kv, self.v_size).transpose(1, 2)
        if self.position == "rotary":
            q, k = self._rotate(q, k, position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        out, _weights = sdpa_attention_forward(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scale)
        return self.o_proj(out.reshape(b, t, self.n_q * self.v_size)), None


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)
