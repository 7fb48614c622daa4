"""Multi-head latent attention: the cache holds `W^a x` of keys and values (CARE, section 3.4)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import Attention
from .compressed import CompressedAttention
from .projections import LowRankLinear, linear_module
from .rotary import rotary_tables, rotated, stored_table


class LatentAttention(CompressedAttention):
    """Attention that caches r_K + r_V numbers per token: the latents of `k_proj` and `v_proj`.

    latent: "k", "v" or "kv": the projections whose latents are cached. The output is cached if a
    projection is not low-rank or has a sparse term. Each step expands the cached latents of the
    keys (`W^b`, with the bias) and rotates the keys. Values are expanded for the tokens of a
    prompt. For a single query their latents are weighted first, and `W^b` acts on the sums only
    (the absorption of DeepSeek-V2; the bias counts by the sum of a query's weights, which is 1
    without a sink).
    Scores depend only on differences of positions, so a cached key is rotated by the index in the
    cache, and a query likewise; padding on the left shifts both. Positions must increase by one, as
    in ordinary batches.
    rotary: the network's rotary embedding, called for the complete cache, so that scaled
    frequencies are those of the network.
    A decoupled rotary channel (`q_channel`, `k_channel`; CARE, section 3.5) adds columns to queries
    and keys of each head. Its keys are computed from the cached latents, or from the first numbers
    of them, so the cache does not grow. Its d_r / 2 pairs take evenly spaced frequencies of the
    network: those of a rotary head of size d_r, if d_r divides the rotary width.
    """

    def __init__(
        self,
        sizes: Mapping[str, Any],
        layer_idx: int,
        rotary: nn.Module | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(sizes, layer_idx)
        self.latent = sizes["latent"]
        self.rotary: Any = rotary
        self.q_channel: nn.Linear | None = None
        self.k_channel: nn.Linear | None = None
        for name, (rows, columns, bias) in sizes.get("channel", {}).items():
            setattr(self, name, nn.Linear(columns, rows, bias=bias, dtype=dtype))

    def sizes(self) -> dict[str, Any]:
        channel = {
            name: [*module.weight.shape, module.bias is not None]
            for name in ("q_channel", "k_channel")
            if (module := getattr(self, name)) is not None
        }
        return super().sizes() | ({"channel": channel} if channel else {})

    def fill(self, value: Attention) -> "LatentAttention":
        super().fill(value)
        if value.channel is not None:
            self.q_channel = linear_module(value.channel.q, value.channel.q_bias)
            self.k_channel = linear_module(value.channel.k, value.channel.k_bias)
        return self

    def states_module(self, name: str) -> nn.Module:
        latent = self._low_rank(name)
        return super().states_module(name) if latent is None else latent.up

    def _low_rank(self, name: str) -> LowRankLinear | None:
        """Return the projection of keys or values ("k", "v") if the latent is cached, else None."""
        module = getattr(self, f"{name}_proj")
        latent = name in self.latent and isinstance(module, LowRankLinear)
        return module if latent and module.sparse is None else None

    def _latent(self, name: str, x: Tensor) -> Tensor:
        """Return the cached state of keys or values: [b, t, d] -> [b, t, r]."""
        low_rank = self._low_rank(name)
        latent: Tensor = (getattr(self, f"{name}_proj") if low_rank is None else low_rank.down)(x)
        return latent

    def _expand(self, name: str, cached: Tensor) -> Tensor:
        """Return keys or values from their cached state: [b, T, r] -> [b, T, heads * size]."""
        low_rank = self._low_rank(name)
        return cached if low_rank is None else low_rank.up(cached)

    def project(
        self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values as in `CompressedAttention`, from cached latents; x [b,
        t, d].

        For a single query the values may be latents, [b, T, r].
        """
        latent, v, start = self._cached(x, cache)
        angles = recent = None
        if self.position == "rotary":
            angles = self._all_angles(x, latent.shape[1])
            cos, sin = angles
            end = start + x.shape[1]
            recent = cos[:, start:end], sin[:, start:end]
        q = self.states("q", self.q_proj(x), recent)
        k = self.states("k", self._expand("k", latent), angles)
        if self.q_channel is not None and self.k_channel is not None and angles and recent:
            more_q = self.q_channel(x).unflatten(-1, (self.n_q, -1)).transpose(1, 2)
            more_q = rotated(more_q, *self._channel_angles(recent))
            first = latent[..., : self.k_channel.in_features]
            more_k = self.k_channel(first).unsqueeze(1)  # [b, 1, T, d_r], for all heads
            more_k = rotated(more_k, *self._channel_angles(angles))
            q = torch.cat((q, more_q), -1)
            k = torch.cat((k, more_k.expand(-1, self.n_kv, -1, -1)), -1)
        if x.shape[1] == 1 and self._plain_up() is not None:
            return q, k, v
        heads = self.n_q if self.summed else self.n_kv
        v = self._expand("v", v).unflatten(-1, (heads, self.v_size)).transpose(1, 2)
        return q, k, v

    def _channel_angles(self, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the channel's pairs, [1, t, width] -> [1, 1, t, d_r]."""
        assert self.k_channel is not None
        return _spaced(self.in_halves(tables), self.k_channel.out_features)

    def _plain_up(self) -> nn.Linear | None:
        """Return W^b of the values if their latents are cached.

        None if it has a stored form, or if the module does more than multiply (an adapter, an
        offloaded weight).
        """
        values = self._low_rank("v")
        up = None if values is None else values.up
        # accelerate loads the weight when the module is called
        return up if type(up) is nn.Linear and not hasattr(up, "_hf_hook") else None

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weighted: bool
    ) -> tuple[Tensor, Tensor | None]:
        up = self._plain_up() if v.dim() == 3 else None
        if up is None:
            return super()._attend(q, k, v, mask, weighted)
        b, heads, _, size = k.shape
        scores = (q.reshape(b, heads, -1, size) @ k.mT).view(b, self.n_q, 1, -1) * self.scale
        precise = torch.promote_types(scores.dtype, torch.float32)
        weights = self._weights(self._masked(scores, mask), precise).to(v.dtype)
        sums = (weights.squeeze(2) @ v).unflatten(1, (up.out_features // self.v_size, -1))
        out = sums @ up.weight.unflatten(0, (-1, self.v_size)).mT  # [b, heads, group, v_size]
        if up.bias is not None:
            bias = up.bias.view(-1, 1, self.v_size)
            # with a sink the weights do not sum to 1
            out = out + (
                bias if self.sinks is None else bias * weights.sum(-1).view_as(out[..., :1])
            )
        return out.reshape(b, 1, self.n_q, self.v_size), weights if weighted else None

    def _cached(self, x: Tensor, cache: Any) -> tuple[Tensor, Tensor, int]:
        """Return latents of keys and values of all T tokens, [b, T, r] each, and the position of x
        in them.

        A latent that keys and values share is cached once, as keys.
        """
        start = 0
        keys, values = self._low_rank("k"), self._low_rank("v")
        shared = keys is not None and values is not None and keys.down is values.down
        k = self._latent("k", x)  # [b, t, r]
        v = k[..., :0] if shared else self._latent("v", x)
        if cache is not None:
            # read the length before the update; caches of fixed length count in place
            start = int(cache.get_seq_length(self.layer_idx))
            updated = cache.update(k.unsqueeze(1), v.unsqueeze(1), self.layer_idx)
            k, v = (states.squeeze(1) for states in updated)
        start = min(start, k.shape[1] - x.shape[1])  # a sliding cache has dropped the first tokens
        return k, k if shared else v, start

    def _all_angles(self, like: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of positions 0, 1, ..., [1, length, rotary part] each."""
        positions = torch.arange(length, device=like.device).unsqueeze(0)
        network_tables = None
        if stored_table(self) is None:
            kind: tuple[str, ...] = ()
            if hasattr(self.rotary, "layer_types"):  # Gemma 3: a table per type of layer
                kind = (self.rotary.config.layer_types[self.layer_idx],)
            network_tables = self.rotary(like, positions, *kind)
        tables = rotary_tables(self, network_tables, positions, like.dtype)
        assert tables is not None
        return tables


def _spaced(tables: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin of evenly spaced pairs, [1, t, width] -> [1, 1, t, size]."""
    cos, sin = tables
    half, pairs = cos.shape[-1] // 2, size // 2
    columns = [offset + index * half // pairs for offset in (0, half) for index in range(pairs)]
    return cos[..., columns].unsqueeze(1), sin[..., columns].unsqueeze(1)
