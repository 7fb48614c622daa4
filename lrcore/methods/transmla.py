"""TransMLA: Multi-Head Latent Attention Is All You Need.

Keys of all kv heads are one long key, which every query head reads through its own part (the
up-projection absorbed into the queries). Then

* RoRoPE: within a group of `fold` neighbouring frequencies the keys of all heads are turned to
  their principal axes, real and imaginary parts by the same rotation, so that it changes places
  with the rotary one. The first axes keep their positions, as one key that all heads share; the
  others lose them. With fold = 1 a rotation joins parts of one frequency and is exact; with more,
  the axes concentrate better and frequencies of neighbours are taken for each other
  (frequency folding).
* BKV: what has no positions is divided by its norm against that of the values.
* Joint PCA of the outputs `[K_nope; V]`: one latent.

Without positions a model is another one; it is meant to be trained afterwards. At full rank a slot
stays as it is, with all its positions.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import InputError
from ..forms import PassedRows
from ..layer import Attention, Layer, LowRank, RotaryChannel, heads
from ..linalg import eigh_descending, state_gram
from ..options import option
from ..spectra import Cost
from ..statistics import Moments
from .factors import LayerFactors
from .latents import joint_latent_cost
from .method import Method

MOST_HEADS = 10_000  # more than any model has


@dataclass(frozen=True)
class TransmlaOptions:
    rotary: float = option(
        0.5,
        "Numbers of the key with positions that all heads share, as a share of a head: 0.5 is 64 "
        "of 128. More than the number of kv heads keeps all positions.",
        low=0,
        high=MOST_HEADS,
    )
    fold: int = option(
        2, "Neighbouring frequencies that are turned to their principal axes together.", low=1
    )
    balance: float = option(
        1.0,
        "Norm of the keys without positions against that of the values in the joint PCA (BKV); 0 "
        "leaves both as they are.",
        low=0,
    )


DEFAULT = TransmlaOptions()
NEEDS = frozenset({("attn_in", "second"), ("attn_in", "mean")})


def factor(layer: Layer, moments: Moments, options: TransmlaOptions = DEFAULT) -> LayerFactors:
    """Solve K and V of one layer for all ranks.

    The loss curve is that of the joint PCA: `E |[K_nope; V] - R_r R_r^T [K_nope; V]|^2`, keys
    balanced. What is lost with the positions is not in it. Without rotary positions nothing turns.

    Raises InputError where the heads are normalised or have lost pairs, so that they cannot be
    joined, and where fold does not divide the pairs that turn.
    """
    a = layer.attention
    second, mean = moments.second("attn_in"), moments.mean("attn_in")
    axes, turning = principal_axes(a, state_gram(a.k.weight, a.k.bias, second, mean), options)
    ratio = 1.0
    k, v = axes[turning:] @ a.k.weight.double(), a.v.weight.double()
    k_bias = None if a.k.bias is None else axes[turning:] @ a.k.bias.double()
    if options.balance and len(k):
        norms = [
            state_gram(*both, second, mean).diagonal().clamp_min(0).sqrt().mean()
            for both in ((k, k_bias), (v, a.v.bias))
        ]
        known = bool(norms[0] > 0) and bool(norms[1] > 0)
        ratio = float(norms[0] / (norms[1] * options.balance)) if known else 1.0
    stacked, bias = torch.cat((k / ratio, v)), None
    if k_bias is not None or a.v.bias is not None:
        parts = (k_bias, len(k), ratio), (a.v.bias, len(v), 1.0)
        bias = torch.cat([stacked.new_zeros(n) if b is None else b / by for b, n, by in parts])
    squares, basis = eigh_descending(state_gram(stacked, bias, second, mean))
    cost = channel_cost(a, layer, turning)
    keys = axes[turning:].mT @ basis[: len(k)] * ratio  # [n_kv d_h, s]
    return {
        "kv": SharedKey(
            squares.clamp_min(0).sqrt()[: cost.full],
            cost,
            None,
            axes[:turning],
            (keys, basis[len(k) :]),
            basis.mT @ stacked,
            None if bias is None else basis.mT @ bias,
        )
    }


def principal_axes(a: Attention, gram: Tensor, options: TransmlaOptions) -> tuple[Tensor, int]:
    """RoRoPE: a rotation `U` of the long key [n_kv d_h, n_kv d_h], float64, and how many of its
    first rows keep their positions, the halves of their pairs side by side.

    gram [n_kv d_h, n_kv d_h]: E[k k^T] before rotary. Of every group of `fold` frequencies the
    axes are the eigenvectors of the sum of the real and the imaginary part of it, [n_kv fold]^2.
    """
    size = len(gram)
    if a.position != "rotary":
        return torch.eye(size, dtype=gram.dtype, device=gram.device), 0
    whole = turning_pairs(a, options.fold)
    kept = min(a.n_kv * options.fold, max(1, round(options.rotary * options.fold)))
    first: list[Tensor] = []
    rest: list[Tensor] = []
    for start in range(0, whole, options.fold):
        pairs = torch.arange(start, start + options.fold, device=gram.device)
        own = torch.arange(a.n_kv, device=gram.device).unsqueeze(1) * a.qk_size
        halves = [(own + pairs + half).flatten() for half in (0, a.qk_size // 2)]
        real, imaginary = (gram[rows][:, rows] for rows in halves)
        _, vectors = eigh_descending(real + imaginary)
        both = gram.new_zeros(2, len(vectors), size)
        for rows, into in zip(halves, both, strict=True):
            into[:, rows] = vectors.mT
        first.append(both[:, :kept])
        rest.append(both[:, kept:])
    still = _still_rows(a, whole, gram)
    axes = [torch.cat(first, 1).flatten(0, 1), torch.cat(rest, 1).flatten(0, 1), still]
    return torch.cat(axes), 2 * kept * (whole // options.fold)


def turning_pairs(a: Attention, fold: int) -> int:
    """How many pairs of every head turn, the first of it.

    Raises InputError as `factor`.
    """
    if a.qk_norm is not None or a.rotary_pairs is not None:
        reason = "normalised" if a.qk_norm is not None else "narrowed to pairs of their own"
        raise InputError(
            f"The heads of this model are {reason}, so transmla cannot turn all keys together. "
            "Choose care or mha2mla, or start from the dense model."
        )
    whole = a.qk_size // 2 if a.frequencies is None else int((a.frequencies > 0).sum())
    if whole % fold:
        sizes = ", ".join(str(size) for size in range(1, whole + 1) if whole % size == 0)
        raise InputError(
            f"{whole} rotary pairs make no whole groups of {fold}; values of fold that do: {sizes}."
        )
    return whole


def _still_rows(a: Attention, whole: int, like: Tensor) -> Tensor:
    """The axes of the long key that no position turns (partial rotary), [n, n_kv d_h]."""
    column = torch.arange(a.n_kv * a.qk_size, device=like.device) % (a.qk_size // 2)
    return torch.eye(len(column), dtype=like.dtype, device=like.device)[column >= whole]


def channel_cost(a: Attention, layer: Layer, turning: int) -> Cost:
    """A rank is a row of `down`, a column of both `up`, and one cached number per token; the key
    with positions is cached beside it, and every query head has a part that reads it.

    Every later token raises the latents of the whole cache, of keys and of values.
    """
    whole, d_in = joint_latent_cost(layer), a.k.weight.shape[1]
    outputs = len(a.k.weight) + len(a.v.weight)
    biases = sum(n for n, p in ((a.n_q, a.q), (1, a.k)) if p.bias is not None) * turning
    channel = (a.n_q * d_in + turning) * turning + biases
    return replace(
        whole,
        full=min(outputs - turning, d_in),
        per_rank=outputs + d_in,
        fixed=whole.fixed + turning * d_in + channel,
        kv_fixed=turning,
        per_cached=outputs,
        cached_dense=whole.cached_dense - a.n_q * a.v_size - (a.n_q + turning) * turning,
        idle_per_rank=0,
        idle_fixed=whole.fixed + biases,
    )


@dataclass(frozen=True, eq=False)
class SharedKey:
    """K and V whose cache holds a rotary key that all heads share, and a latent.

    axes [t, n_kv d_h]: of the long key, those that keep their positions; ups [n_kv d_h, k] and
    [rows of v, k]; down [k, d]; offset [k]: of the latent, what the biases of keys and values make
    of it.
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
        dtype, lead = a.k.weight.dtype, len(self.axes)
        shared = self.axes @ a.k.weight.double()
        down = torch.cat((shared, self.down[:rank])).to(dtype)
        k, v = (
            LowRank(down, _behind(up[:, :rank].to(dtype), lead), self._bias(up, rank, old.bias))
            for up, old in zip(self.ups, (a.k, a.v), strict=True)
        )
        small = replace(a, k=k, v=v, latent="kv")
        if lead:
            pairs = torch.full((a.n_kv, a.qk_size // 2), -1, device=down.device)
            small = replace(small, rotary_pairs=pairs, channel=self._channel(a))
        return replace(layer, attention=small)

    def _bias(self, up: Tensor, rank: int, old: Tensor | None) -> Tensor | None:
        """What the offset of the latent gives, for a projection that has a bias."""
        if old is None or self.offset is None:
            return None
        return (up[:, :rank] @ self.offset[:rank]).to(old.dtype)

    def _channel(self, a: Attention) -> RotaryChannel:
        """The queries of the shared key, `U (q's part of the long key)`, and the key as cached."""
        own = heads(self.axes.mT, a.n_kv).repeat_interleave(a.group, 0).mT  # [n_q, t, d_h]
        dtype, lead = a.q.weight.dtype, len(self.axes)
        q = (own @ heads(a.q.weight.double(), a.n_q)).flatten(0, 1).to(dtype)
        q_bias = k_bias = None
        if a.q.bias is not None:
            q_bias = (own @ heads(a.q.bias.double(), a.n_q).unsqueeze(-1)).flatten().to(dtype)
        if a.k.bias is not None:
            k_bias = (self.axes @ a.k.bias.double()).to(dtype)
        return RotaryChannel(q, torch.eye(lead, dtype=dtype, device=q.device), q_bias, k_bias)


def _behind(up: Tensor, lead: int) -> PassedRows:
    """`[0, up]`: the first `lead` cached numbers are not read."""
    place = torch.arange(lead, lead + len(up), dtype=torch.int32, device=up.device)
    return PassedRows(up.contiguous(), place, lead)


METHOD = Method(
    name="transmla",
    paper="TransMLA: Multi-Head Latent Attention Is All You Need (Meng et al., NeurIPS 2025)",
    notes="Keys of all heads are turned to the principal axes of every few rotary frequencies; the "
    "first keep their positions as one cached key that all heads share, and the rest, balanced, "
    "and the values become one cached latent by PCA of the outputs. Meant to be trained afterwards "
    "(heal). Its ratios are shares of the KV cache. Queries stay whole.",
    factor=factor,
    components=("kv",),
    needs=NEEDS,
    shrinks_kv=True,
    holds={"kv": ("k", "v")},
    options=TransmlaOptions,
)
