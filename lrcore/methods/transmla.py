"""TransMLA: Multi-Head Latent Attention Is All You Need.

The keys of all kv heads form a single long key, which each query head reads through its part (the
up-projection absorbed into the queries). Then

* RoRoPE: within a group of `fold` neighboring frequencies the keys of all heads are rotated to
  their principal axes, real and imaginary parts by the same rotation, which therefore commutes with
  the rotary embedding. The first axes keep their positions, as a single key that all heads share;
  the remaining axes lose them. With fold = 1 a rotation joins parts of the same frequency and is
  exact. With larger values the axes concentrate better, but neighboring frequencies are treated as
  equal (frequency folding).
* BKV: the part without positions is divided by its norm relative to that of the values.
* Joint PCA of the outputs `[K_nope; V]`: a joint latent.

The loss of positions changes the model substantially, so the method is meant to be followed by
training. At full rank a slot is unchanged, with all positions.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.forms import PassedRows
from ..layers.layer import Attention, Layer, LowRank, RotaryChannel, heads
from ..layers.linalg import eigh_descending, state_gram
from ..layers.spectra import Cost
from ..layers.statistics import Moments
from ..system.errors import InputError
from ..system.settings import option
from .factors import LayerFactors
from .latents import joint_latent_cost
from .method import Method

MAX_HEADS = 10_000  # above the head count of all models


@dataclass(frozen=True)
class TransmlaOptions:
    rotary: float = option(
        0.5,
        "Size of the shared key with positions, as a fraction of the size of a head: 0.5 is 64 of "
        "128. A value above the number of kv heads keeps all positions.",
        low=0,
        high=MAX_HEADS,
    )
    fold: int = option(
        2, "Neighboring frequencies that are rotated to joint principal axes.", low=1
    )
    balance: float = option(
        1.0,
        "Norm of the keys without positions relative to that of the values in the joint PCA (BKV); "
        "0: no balancing.",
        low=0,
    )


DEFAULT = TransmlaOptions()
NEEDS = frozenset({("attn_in", "second"), ("attn_in", "mean")})


def factor(layer: Layer, moments: Moments, options: TransmlaOptions = DEFAULT) -> LayerFactors:
    """Return the factors of K and V of a layer for all ranks.

    The loss curve is that of the joint PCA: `E |[K_nope; V] - R_r R_r^T [K_nope; V]|^2`, keys
    balanced. It does not contain the loss of positions. Without rotary positions no axes are
    separated.

    Raises InputError if the heads are normalized or have removed pairs, so that they cannot be
    joined, or if fold does not divide the number of rotary pairs.
    """
    a = layer.attention
    second, mean = moments.second("attn_in"), moments.mean("attn_in")
    axes, rotated = principal_axes(a, state_gram(a.k.weight, a.k.bias, second, mean), options)
    ratio = 1.0
    k, v = axes[rotated:] @ a.k.weight.double(), a.v.weight.double()
    k_bias = None if a.k.bias is None else axes[rotated:] @ a.k.bias.double()
    if options.balance and len(k):
        norms = [
            state_gram(weight, bias, second, mean).diagonal().clamp_min(0).sqrt().mean()
            for weight, bias in ((k, k_bias), (v, a.v.bias))
        ]
        is_positive = bool(norms[0] > 0) and bool(norms[1] > 0)
        ratio = float(norms[0] / (norms[1] * options.balance)) if is_positive else 1.0
    stacked, bias = torch.cat((k / ratio, v)), None
    if k_bias is not None or a.v.bias is not None:
        parts = (k_bias, len(k), ratio), (a.v.bias, len(v), 1.0)
        bias = torch.cat([stacked.new_zeros(n) if b is None else b / by for b, n, by in parts])
    squares, basis = eigh_descending(state_gram(stacked, bias, second, mean))
    cost = channel_cost(a, layer, rotated)
    keys = axes[rotated:].mT @ basis[: len(k)] * ratio  # [n_kv d_h, s]
    return {
        "kv": SharedKey(
            squares.clamp_min(0).sqrt()[: cost.full],
            cost,
            None,
            axes[:rotated],
            (keys, basis[len(k) :]),
            basis.mT @ stacked,
            None if bias is None else basis.mT @ bias,
        )
    }


def principal_axes(a: Attention, gram: Tensor, options: TransmlaOptions) -> tuple[Tensor, int]:
    """Return the rotation `U` of the long key by RoRoPE, [n_kv d_h, n_kv d_h], float64, and how
    many of its first rows keep their positions.

    These rows hold the first halves of all pairs, then the second halves. gram [n_kv d_h, n_kv
    d_h]: E[k k^T] before rotary. The axes of each group of `fold` frequencies are the eigenvectors
    of the sum of its real and imaginary part, [n_kv fold]^2.
    """
    size = len(gram)
    if a.position != "rotary":
        return torch.eye(size, dtype=gram.dtype, device=gram.device), 0
    count = count_rotary_pairs(a, options.fold)
    per_group = min(a.n_kv * options.fold, max(1, round(options.rotary * options.fold)))
    leading: list[Tensor] = []
    remaining: list[Tensor] = []
    for start in range(0, count, options.fold):
        pairs = torch.arange(start, start + options.fold, device=gram.device)
        head_starts = torch.arange(a.n_kv, device=gram.device).unsqueeze(1) * a.qk_size
        halves = [(head_starts + pairs + half).flatten() for half in (0, a.qk_size // 2)]
        real, imaginary = (gram[rows][:, rows] for rows in halves)  # [n_kv fold, n_kv fold]
        _, vectors = eigh_descending(real + imaginary)
        rotations = gram.new_zeros(2, len(vectors), size)  # of the real and the imaginary parts
        for rows, rotation in zip(halves, rotations, strict=True):
            rotation[:, rows] = vectors.mT
        leading.append(rotations[:, :per_group])
        remaining.append(rotations[:, per_group:])
    axes = [
        torch.cat(leading, 1).flatten(0, 1),  # [2, m, size] -> [2 m, size]
        torch.cat(remaining, 1).flatten(0, 1),
        _unrotated_rows(a, count, gram),
    ]
    return torch.cat(axes), 2 * per_group * (count // options.fold)


def count_rotary_pairs(a: Attention, fold: int) -> int:
    """Return the number of rotated pairs of each head; they are the first pairs.

    Raises InputError as `factor`.
    """
    if a.qk_norm is not None or a.rotary_pairs is not None:
        reason = "normalized" if a.qk_norm is not None else "narrowed to different rotary pairs"
        raise InputError(
            f"The heads of this model are {reason}, so transmla cannot join their keys. Choose "
            "care or mha2mla, or start from the dense model."
        )
    count = a.qk_size // 2 if a.frequencies is None else int((a.frequencies > 0).sum())
    if count % fold:
        divisors = ", ".join(str(size) for size in range(1, count + 1) if count % size == 0)
        raise InputError(
            f"fold={fold} does not divide the {count} rotary pairs; use one of {divisors}."
        )
    return count


def _unrotated_rows(a: Attention, count: int, like: Tensor) -> Tensor:
    """Return the axes of the long key that are not rotated (partial rotary), [n, n_kv d_h]."""
    column = torch.arange(a.n_kv * a.qk_size, device=like.device) % (a.qk_size // 2)
    return torch.eye(len(column), dtype=like.dtype, device=like.device)[column >= count]


def channel_cost(a: Attention, layer: Layer, rotated: int) -> Cost:
    """Return the cost of a joint latent with a shared key of `rotated` numbers.

    A rank is a row of `down`, a column of both `up`, and a cached number per token. The key with
    positions is cached in addition, and each query head has a part that reads it. Every later token
    expands the latents of the complete cache, of keys and of values.
    """
    latent, d_in = joint_latent_cost(layer), a.k.weight.shape[1]
    outputs = len(a.k.weight) + len(a.v.weight)
    biases = sum(n for n, p in ((a.n_q, a.q), (1, a.k)) if p.bias is not None) * rotated
    channel = (a.n_q * d_in + rotated) * rotated + biases
    return replace(
        latent,
        full=min(outputs - rotated, d_in),
        per_rank=outputs + d_in,
        fixed=latent.fixed + rotated * d_in + channel,
        kv_fixed=rotated,
        per_cached=outputs,
        cached_dense=latent.cached_dense - a.n_q * a.v_size - (a.n_q + rotated) * rotated,
        idle_per_rank=0,
        idle_fixed=latent.fixed + biases,
    )


@dataclass(frozen=True, eq=False)
class SharedKey:
    """K and V whose cache holds a rotary key that all heads share, and a latent.

    axes [t, n_kv d_h]: the axes of the long key that keep their positions; ups [n_kv d_h, k] and
    [rows of v, k]; down [k, d]; offset [k]: the latent of the biases of keys and values.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    axes: Tensor
    ups: tuple[Tensor, Tensor]
    down: Tensor
    offset: Tensor | None

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        dtype, channel = a.k.weight.dtype, len(self.axes)
        shared = self.axes @ a.k.weight.double()
        down = torch.cat((shared, self.down[:rank])).to(dtype)
        k, v = (
            LowRank(
                down,
                _after_channel(up[:, :rank].to(dtype), channel),
                self._bias(up, rank, old.bias),
            )
            for up, old in zip(self.ups, (a.k, a.v), strict=True)
        )
        small = replace(a, k=k, v=v, latent="kv")
        if channel:
            pairs = torch.full((a.n_kv, a.qk_size // 2), -1, device=down.device)
            small = replace(small, rotary_pairs=pairs, channel=self._channel(a))
        return replace(layer, attention=small)

    def _bias(self, up: Tensor, rank: int, old: Tensor | None) -> Tensor | None:
        """Return the contribution of the offset of the latent, for a projection that has a bias."""
        if old is None or self.offset is None:
            return None
        return (up[:, :rank] @ self.offset[:rank]).to(old.dtype)

    def _channel(self, a: Attention) -> RotaryChannel:
        """Return the queries of the shared key, `U (q's part of the long key)`, and the
        cached key.
        """
        parts = heads(self.axes.mT, a.n_kv).repeat_interleave(a.group, 0).mT  # [n_q, t, d_h]
        dtype, size = a.q.weight.dtype, len(self.axes)
        q = (parts @ heads(a.q.weight.double(), a.n_q)).flatten(0, 1).to(dtype)  # [n_q t, d]
        q_bias = k_bias = None
        if a.q.bias is not None:
            q_bias = (parts @ heads(a.q.bias.double(), a.n_q).unsqueeze(-1)).flatten().to(dtype)
        if a.k.bias is not None:
            k_bias = (self.axes @ a.k.bias.double()).to(dtype)
        return RotaryChannel(q, torch.eye(size, dtype=dtype, device=q.device), q_bias, k_bias)


def _after_channel(up: Tensor, channel: int) -> PassedRows:
    """Return `[0, up]`: the first `channel` cached numbers are not read."""
    source = torch.arange(channel, channel + len(up), dtype=torch.int32, device=up.device)
    return PassedRows(up.contiguous(), source, channel)


METHOD = Method(
    name="transmla",
    paper="TransMLA: Multi-Head Latent Attention Is All You Need (Meng et al., NeurIPS 2025)",
    summary="Caches keys and values as one latent of their outputs; to be trained afterwards.",
    notes="Keys of all heads are rotated to the principal axes of small groups of rotary "
    "frequencies. The first axes keep their positions as a cached key that all heads share; the "
    "remaining axes, balanced, and the values become a joint cached latent by PCA of the outputs. "
    "Meant to be trained afterwards (heal). Ratios refer to the KV cache. Queries are not "
    "compressed.",
    factor=factor,
    components=("kv",),
    needs=NEEDS,
    shrinks_kv=True,
    holds={"kv": ("k", "v")},
    options=TransmlaOptions,
)
