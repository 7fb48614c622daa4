"""Multi-head latent attention at run time: the cache holds `W^a x` of keys and values, and
nothing else (CARE, section 3.4).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layer import Attention
from .compressed import CompressedAttention, rotated
from .projections import LowRankLinear, linear_module


class LatentAttention(CompressedAttention):
    """Attention that caches r_K + r_V numbers per token: the latents of `k_proj` and `v_proj` where
    these are low-rank, else their states.

    Every step raises the cached latents to states (`W^b`, with the bias), turns the keys, and
    attends: the zero-shot run time of CARE. Scores read differences of positions only, so a cached
    key is turned by its place in the cache and a query by its own; that a row of a batch is padded
    on the left shifts both alike. Holds for positions that count up by one, as in every plain
    batch.
    rotary: the network's own position module, asked anew for the whole cache, so scaled frequencies
    stay those of the network.
    A decoupled rotary channel (`q_channel`, `k_channel`; CARE, section 3.5) stands behind queries
    and keys as further columns of every head. Its keys are computed from the cached latents, so the
    cache holds nothing more. Its d_r / 2 pairs turn like as many of the network's own, evenly
    spread: where d_r divides the width that turns, those of a rotary head of d_r numbers.
    """

    latent = True

    def __init__(
        self,
        sizes: Mapping[str, Any],
        layer_idx: int,
        rotary: nn.Module | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(sizes, layer_idx)
        self.rotary, self.q_channel, self.k_channel = rotary, None, None
        for name, (rows, columns) in (sizes.get("channel") or {}).items():
            setattr(self, name, nn.Linear(columns, rows, bias=False, dtype=dtype))

    def sizes(self) -> dict[str, Any]:
        own = {
            name: list(getattr(self, name).weight.shape)
            for name in ("q_channel", "k_channel")
            if getattr(self, name) is not None
        }
        return super().sizes() | ({"channel": own} if own else {})

    def fill(self, value: Attention) -> "LatentAttention":
        super().fill(value)
        if value.channel is not None:
            self.q_channel, self.k_channel = (
                linear_module(value.channel.q),
                linear_module(value.channel.k),
            )
        return self

    def project(
        self, x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None, cache: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        t, start = x.shape[1], 0
        one = isinstance(self.k_proj, LowRankLinear) and self.k_proj.down is getattr(
            self.v_proj, "down", None
        )
        k = _lower(self.k_proj, x)  # [b, t, r]
        v = (
            k[..., :0] if one else _lower(self.v_proj, x)
        )  # a latent that both share is cached once, in the place of the keys
        if cache is not None:
            start = int(
                cache.get_seq_length(self.layer_idx)
            )  # before it grows; caches of fixed length count in place
            k, v = (
                held.squeeze(1)
                for held in cache.update(k.unsqueeze(1), v.unsqueeze(1), self.layer_idx)
            )
        v = k if one else v
        start = min(start, k.shape[1] - t)  # a sliding cache has let go of the first
        angles = recent = None
        if self.position == "rotary":
            angles = self._all_angles(x, k.shape[1])
            recent = tuple(table[:, start : start + t] for table in angles)
        latent = k
        q, k = (
            self.states("q", self.q_proj(x), recent),
            self.states("k", _raise(self.k_proj, latent), angles),
        )
        if self.q_channel is not None:
            more_q = rotated(
                self.q_channel(x).unflatten(-1, (self.n_q, -1)).transpose(1, 2),
                *self._channel_angles(recent),
            )
            more_k = rotated(
                self.k_channel(latent).unsqueeze(1), *self._channel_angles(angles)
            )  # [b, 1, T, d_r], for all heads
            q, k = (
                torch.cat((q, more_q), -1),
                torch.cat((k, more_k.expand(-1, self.n_kv, -1, -1)), -1),
            )
        return q, k, _raise(self.v_proj, v).unflatten(-1, (self.n_kv, self.v_size)).transpose(1, 2)

    def _channel_angles(self, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """cos and sin for the channel, [1, 1, t, d_r]: the columns of pairs spread evenly over
        those of the tables [1, t, width].
        """
        half, pairs = tables[0].shape[-1] // 2, self.k_channel.out_features // 2
        columns = [place + index * half // pairs for place in (0, half) for index in range(pairs)]
        return tuple(table[..., columns].unsqueeze(1) for table in tables)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """With a channel the values are as wide as the keys for the length of the product: fused
        kernels want all three alike.
        """
        if self.q_channel is None:
            return super()._attend(q, k, v, mask)
        padded = nn.functional.pad(v, (0, q.shape[-1] - v.shape[-1]))
        return super()._attend(q, k, padded, mask)[..., : self.v_size]

    def _all_angles(self, like: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin of positions 0, 1, ... [1, length, rotary part]; a module with tables for
        several kinds of layers is told which.
        """
        kind = (
            (self.rotary.config.layer_types[self.layer_idx],)
            if hasattr(self.rotary, "layer_types")
            else ()
        )
        return self.rotary(like, torch.arange(length, device=like.device).unsqueeze(0), *kind)


def _lower(projection: nn.Module, x: Tensor) -> Tensor:
    """What is cached of a projection. [b, t, d] -> [b, t, r]"""
    return projection.down(x) if isinstance(projection, LowRankLinear) else projection(x)


def _raise(projection: nn.Module, cached: Tensor) -> Tensor:
    """The states of what was cached. [b, T, r] -> [b, T, n_kv * size]"""
    return projection.up(cached) if isinstance(projection, LowRankLinear) else cached
