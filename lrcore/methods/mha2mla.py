"""MHA2MLA: Towards Economical Inference, enabling multi-head latent attention in any
transformer-based LLM.

Partial rotary: each head keeps its positions in a few rotary pairs, the same pairs for the queries
that read it; these keys are cached unchanged. The remaining keys lose their positions and are
computed, with the values, from a latent: `[W_K,nope; W_V] ~ W^b W^a`, by SVD of the weights. The
cache holds the rotated keys and `W^a x`.

The loss of positions changes the model substantially, so the method is meant to be followed by
training. At full rank a slot is unchanged, with all positions.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.forms import PassedRows
from ..layers.layer import Attention, Layer, LowRank
from ..layers.spectra import Cost
from ..layers.statistics import Moments
from ..system.settings import option
from ..system.threads import threads_for
from .factors import LayerFactors
from .latents import LatentMatrix, joint_latent_cost, latent_cost, with_latents
from .method import Method
from .ranking import column_products


@dataclass(frozen=True)
class Mha2mlaOptions:
    rotary: float = option(
        0.125,
        "Fraction of the rotary pairs of each head that keep their positions, at least one pair; "
        "an eighth in the models of the paper.",
        low=0,
        high=1,
    )
    pairs: str = option(
        "norm",
        "Which pairs: norm (largest 2-norms of queries and keys), high or low frequencies, or "
        "uniform (evenly spaced).",
        choices=("norm", "high", "low", "uniform"),
    )
    split: bool = option(
        False, "Separate latents of keys and values, by separate SVDs, instead of a joint latent."
    )


DEFAULT = Mha2mlaOptions()
NORMS = frozenset({("q_rotated", "square"), ("k_rotated", "square")})


def factor(layer: Layer, moments: Moments, options: Mha2mlaOptions = DEFAULT) -> LayerFactors:
    """Return the factors of K and V of a layer for all ranks.

    The loss curve has the singular values of `[W_K,nope; W_V]`; with split, of both matrices
    separately. It does not contain the loss of positions. Without rotary positions no pairs are
    separated.
    """
    a = layer.attention
    pairs = select_rotary_pairs(a, moments, options)
    rows = pair_rows(a, pairs)
    is_unrotated = torch.ones(len(a.k.weight), dtype=torch.bool, device=rows.device)
    is_unrotated[rows] = False
    nope = a.k.weight[is_unrotated]
    if not options.split:
        up, values, down = weight_svd(torch.cat((nope, a.v.weight)))
        cost = partial_rotary_cost(joint_latent_cost(layer), a, len(rows), joint=True)
        keys_up, values_up = up.split([len(nope), len(a.v.weight)])
        return {"kv": PartialRotary(values, cost, None, pairs, keys_up, values_up, down)}
    up, values, down = weight_svd(a.v.weight)
    cost = latent_cost(layer, "v")
    solved = LayerFactors(v=LatentMatrix(values[: cost.full], cost, None, "v", up, down))
    if not len(nope):
        return solved
    up, values, down = weight_svd(nope)
    cost = partial_rotary_cost(latent_cost(layer, "k"), a, len(rows), joint=False)
    return {"k": PartialRotary(values, cost, None, pairs, up, None, down), **solved}


def weight_svd(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `W = (U S) V^T`: up [out, k], values [k], down [k, in], float64."""
    with threads_for(weight):
        up, values, down = torch.linalg.svd(weight.double(), full_matrices=False)
    return up * values, values, down


def select_rotary_pairs(a: Attention, moments: Moments, options: Mha2mlaOptions) -> Tensor:
    """Return the pairs of each kv head that keep their positions, as indices of the pairs of the
    head, ascending: [n_kv, p]; p = 0 without rotary positions.

    norm: the pairs with the largest `sum_i (E |q_i,j|^2 E |k_j|^2)^{1/2}` over the query heads i of
    the group. The paper has means of 2-norms in place of roots of mean squares.
    """
    frequencies, device = a.pair_frequencies, a.k.weight.device
    if a.position != "rotary":
        return torch.zeros(a.n_kv, 0, dtype=torch.long, device=device)
    if frequencies is None:  # several tables of frequencies, each descending
        frequencies = torch.arange(a.qk_size // 2, 0, -1, device=device).expand(a.n_kv, -1)
    rotated = int((frequencies > 0).sum(1).max())
    count = min(rotated, max(1, round(options.rotary * rotated)))
    if options.pairs == "uniform":
        order = frequencies.argsort(dim=1, descending=True, stable=True)
        selected = order[:, torch.arange(count, device=order.device) * rotated // count]
        return selected.sort(1).values
    if options.pairs == "norm":
        scores = column_products(
            _norms(moments, "q_rotated", a.n_q), _norms(moments, "k_rotated", a.n_kv), a
        )
    else:
        scores = frequencies if options.pairs == "high" else 1 / frequencies
    scores = torch.where(frequencies > 0, scores.to(frequencies.device), -1)
    order = scores.argsort(dim=1, descending=True, stable=True)
    return order[:, :count].sort(1).values


def _norms(moments: Moments, tap: str, count: int) -> Tensor:
    """Return the root mean squares of the pairs of each head, [count, pairs]."""
    return moments.square(tap).view(count, 2, -1).sum(1).sqrt()


def pair_rows(a: Attention, pairs: Tensor) -> Tensor:
    """Return the rows of the weight of the keys with these pairs [n_kv, p], head by head: [n_kv 2
    p].
    """
    columns = torch.cat((pairs, pairs + a.qk_size // 2), dim=1)  # [n_kv, 2 p]
    first = torch.arange(a.n_kv, device=pairs.device).unsqueeze(1) * a.qk_size  # [n_kv, 1]
    return (columns + first).flatten()


def partial_rotary_cost(latent_cost: Cost, a: Attention, rotated: int, joint: bool) -> Cost:
    """Return the cost of latents next to `rotated` rows of the weight of the keys that are cached
    unchanged.

    A rank is a row of `down`, a column of the remaining rows of `up`, and a cached number per
    token. Every later token expands the latents of the complete cache, of keys and of values.
    """
    d_in, outputs = a.k.weight.shape[1], len(a.k.weight) - rotated
    cached = latent_cost.cached_dense
    if joint:
        outputs += len(a.v.weight)
        cached -= a.n_q * a.v_size
    return replace(
        latent_cost,
        full=min(outputs, d_in),
        per_rank=outputs + d_in,
        fixed=latent_cost.fixed + rotated * d_in,
        kv_fixed=rotated,
        per_cached=outputs,
        cached_dense=cached,
        idle_per_rank=0,
    )


@dataclass(frozen=True, eq=False)
class PartialRotary:
    """K, or K and V, whose cache holds `[W_K,rotated; W^a] x`.

    pairs [n_kv, p]: the pairs that keep their positions; k_up [unrotated rows of the keys, k]; v_up
    [rows of v, k] or None; down [k, d]; the biases are unchanged.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    pairs: Tensor
    k_up: Tensor
    v_up: Tensor | None
    down: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        rows, dtype = pair_rows(a, self.pairs), a.k.weight.dtype
        down = torch.cat((a.k.weight[rows], self.down[:rank].to(dtype)))
        k = LowRank(down, self._up(self.k_up, rank, rows, dtype), a.k.bias)
        small = replace(layer, attention=replace(a, k=k, rotary_pairs=self._pairs(a)))
        if self.v_up is not None:
            v = LowRank(down, self._up(self.v_up, rank, rows[:0], dtype), a.v.bias)
            small = with_latents(small.with_matrices(v=v), "v")
        return with_latents(small, "k")

    def _up(self, up: Tensor, rank: int, rows: Tensor, dtype: torch.dtype) -> PassedRows:
        """Return `up` of keys or values; `rows` [m] of the result are the cached rotated keys."""
        cached = 2 * self.pairs.numel()  # rows of the rotated keys in the cache
        source = torch.arange(cached, cached + len(up) + len(rows), device=up.device)
        if len(rows):
            is_unrotated = torch.ones_like(source, dtype=torch.bool)
            is_unrotated[rows] = False
            source[is_unrotated] = cached + torch.arange(len(up), device=up.device)
            source[rows] = torch.arange(cached, device=up.device)
        return PassedRows(up[:, :rank].to(dtype).contiguous(), source.int(), cached)

    def _pairs(self, a: Attention) -> Tensor | None:
        """Return the original indices of the rotated pairs, -1 for all unrotated pairs, [n_kv,
        qk_size / 2].
        """
        if a.position != "rotary":
            return a.rotary_pairs
        original = torch.arange(a.qk_size // 2, device=self.pairs.device).expand(a.n_kv, -1)
        original = original if a.rotary_pairs is None else a.rotary_pairs.long()
        selected = original.gather(1, self.pairs)
        return torch.full_like(original, -1).scatter(1, self.pairs, selected)


METHOD = Method(
    name="mha2mla",
    paper="Towards Economical Inference: Enabling DeepSeek's Multi-Head Latent Attention in Any "
    "Transformer-based LLMs (Ji et al., ACL 2025)",
    summary="Caches keys and values as one latent of the weights; to be trained afterwards.",
    notes="Keys keep their positions in a few rotary pairs of each head, cached unchanged. The "
    "remaining columns of the keys, without positions, and the values are computed from a joint "
    "cached latent, by SVD of the weights. Meant to be trained afterwards (heal). Ratios refer to "
    "the KV cache.",
    factor=factor,
    components=("kv",),
    needs=frozenset(),
    shrinks_kv=True,
    holds={"kv": ("k", "v")},
    options=Mha2mlaOptions,
    extra_needs={("pairs", "norm"): NORMS},
)
