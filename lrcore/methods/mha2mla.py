"""MHA2MLA: Towards Economical Inference, enabling multi-head latent attention in any
transformer-based LLM.

Partial rotary: every head keeps its positions in a few rotary pairs, the same ones for the queries
that read it; the keys there are cached as they are. The rest of the keys has no positions, and is
computed with the values from a latent: `[W_K,nope; W_V] ~ W^b W^a`, by SVD of the weights alone.
The cache holds the keys that turn, and `W^a x`.

Without positions a model is another one, so this is worth something after training only. At full
rank a slot stays as it is, with all its positions.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..forms import PassedRows
from ..layer import Attention, Layer, LowRank
from ..options import option
from ..spectra import Cost
from ..statistics import Moments
from ..threads import threads_for
from .factors import LayerFactors
from .latents import LatentMatrix, joint_latent_cost, latent_cost, with_latents
from .method import Method
from .ranking import column_products


@dataclass(frozen=True)
class Mha2mlaOptions:
    rotary: float = option(
        0.125,
        "Share of the rotary pairs of every head that keep their positions, at least one pair; "
        "an eighth in the paper's models.",
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
        False, "A latent for the keys and one for the values, each by its own SVD, instead of one."
    )


DEFAULT = Mha2mlaOptions()
NORMS = frozenset({("q_rotated", "square"), ("k_rotated", "square")})


def factor(layer: Layer, moments: Moments, options: Mha2mlaOptions = DEFAULT) -> LayerFactors:
    """Solve K and V of one layer for all ranks.

    The loss curve is that of the singular values of `[W_K,nope; W_V]`; with split, those of both.
    What is lost with the positions is not in it. Without rotary positions nothing turns.
    """
    a = layer.attention
    kept = turning_pairs(a, moments, options)
    rows = rows_of(a, kept)
    still = torch.ones(len(a.k.weight), dtype=torch.bool, device=rows.device)
    still[rows] = False
    nope = a.k.weight[still]
    if not options.split:
        up, values, down = weight_svd(torch.cat((nope, a.v.weight)))
        cost = partly_cost(joint_latent_cost(layer), a, len(rows), joint=True)
        keys_up, values_up = up.split([len(nope), len(a.v.weight)])
        return {"kv": PartlyTurning(values, cost, None, kept, keys_up, values_up, down)}
    up, values, down = weight_svd(a.v.weight)
    cost = latent_cost(layer, "v")
    solved = LayerFactors(v=LatentMatrix(values[: cost.full], cost, None, "v", up, down))
    if not len(nope):
        return solved
    up, values, down = weight_svd(nope)
    cost = partly_cost(latent_cost(layer, "k"), a, len(rows), joint=False)
    return {"k": PartlyTurning(values, cost, None, kept, up, None, down), **solved}


def weight_svd(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`W = (U S) V^T`: up [out, k], values [k], down [k, in], float64."""
    with threads_for(weight):
        up, values, down = torch.linalg.svd(weight.double(), full_matrices=False)
    return up * values, values, down


def turning_pairs(a: Attention, moments: Moments, options: Mha2mlaOptions) -> Tensor:
    """The pairs of every kv head that keep their positions, as places among those that it has,
    ascending: [n_kv, p]; p = 0 without rotary positions.

    norm: `sum_i (E |q_i,j|^2 E |k_j|^2)^{1/2}` over the query heads i of the group is largest. The
    paper has means of 2-norms where these are roots of mean squares.
    """
    turning, device = a.turning, a.k.weight.device
    if a.position != "rotary":
        return torch.zeros(a.n_kv, 0, dtype=torch.long, device=device)
    if turning is None:  # several tables of frequencies, each descending
        turning = torch.arange(a.qk_size // 2, 0, -1, device=device).expand(a.n_kv, -1)
    whole = int((turning > 0).sum(1).max())
    count = min(whole, max(1, round(options.rotary * whole)))
    if options.pairs == "uniform":
        order = turning.argsort(dim=1, descending=True, stable=True)
        kept = order[:, torch.arange(count, device=order.device) * whole // count]
        return kept.sort(1).values
    if options.pairs == "norm":
        scores = column_products(
            _norms(moments, "q_rotated", a.n_q), _norms(moments, "k_rotated", a.n_kv), a
        )
    else:
        scores = turning if options.pairs == "high" else 1 / turning
    scores = torch.where(turning > 0, scores.to(turning.device), -1)
    order = scores.argsort(dim=1, descending=True, stable=True)
    return order[:, :count].sort(1).values


def _norms(moments: Moments, tap: str, count: int) -> Tensor:
    """Root mean squares of the pairs of every head, [count, pairs]."""
    return moments.square(tap).view(count, 2, -1).sum(1).sqrt()


def rows_of(a: Attention, kept: Tensor) -> Tensor:
    """The rows of the keys' weight that hold these pairs [n_kv, p], head by head: [n_kv 2 p]."""
    columns = torch.cat((kept, kept + a.qk_size // 2), dim=1)
    first = torch.arange(a.n_kv, device=kept.device).unsqueeze(1) * a.qk_size
    return (columns + first).flatten()


def partly_cost(whole: Cost, a: Attention, turning: int, joint: bool) -> Cost:
    """The cost of latents, with so many rows of the keys' weight beside them, which are cached as
    they are: a rank is a row of `down`, a column of the rest of `up`, and one cached number.

    Every later token raises the latents of the whole cache, of keys and of values.
    """
    d_in, outputs = a.k.weight.shape[1], len(a.k.weight) - turning
    cached = whole.cached_dense
    if joint:
        outputs += len(a.v.weight)
        cached -= a.n_q * a.v_size
    return replace(
        whole,
        full=min(outputs, d_in),
        per_rank=outputs + d_in,
        fixed=whole.fixed + turning * d_in,
        kv_fixed=turning,
        per_cached=outputs,
        cached_dense=cached,
        idle_per_rank=0,
    )


@dataclass(frozen=True, eq=False)
class PartlyTurning:
    """K, or K and V, whose cache holds `[W_K,turning; W^a] x`.

    kept [n_kv, p]: the pairs that keep their positions; k_up [rest of the keys, k]; v_up [rows of
    v, k] or None; down [k, d]; the biases stay as they are.
    """

    values: Tensor
    cost: Cost
    heads: Tensor | None
    kept: Tensor
    k_up: Tensor
    v_up: Tensor | None
    down: Tensor

    def truncate(self, layer: Layer, rank: int) -> Layer:
        if rank >= self.cost.full:
            return layer
        a = layer.attention
        rows, dtype = rows_of(a, self.kept), a.k.weight.dtype
        down = torch.cat((a.k.weight[rows], self.down[:rank].to(dtype)))
        k = LowRank(down, self._up(self.k_up, rank, rows, dtype), a.k.bias)
        small = replace(layer, attention=replace(a, k=k, rotary_pairs=self._pairs(a)))
        if self.v_up is not None:
            v = LowRank(down, self._up(self.v_up, rank, rows[:0], dtype), a.v.bias)
            small = with_latents(small.with_matrices(v=v), "v")
        return with_latents(small, "k")

    def _up(self, up: Tensor, rank: int, rows: Tensor, dtype: torch.dtype) -> PassedRows:
        """`up` of keys or values, where some rows [m] are passed on from the cached keys."""
        lead = 2 * self.kept.numel()
        place = torch.arange(lead, lead + len(up) + len(rows), device=up.device)
        if len(rows):
            still = torch.ones_like(place, dtype=torch.bool)
            still[rows] = False
            place[still] = lead + torch.arange(len(up), device=up.device)
            place[rows] = torch.arange(lead, device=up.device)
        return PassedRows(up[:, :rank].to(dtype).contiguous(), place.int(), lead)

    def _pairs(self, a: Attention) -> Tensor | None:
        """The original index of the pairs that turn, -1 for all others, [n_kv, qk_size / 2]."""
        if a.position != "rotary":
            return a.rotary_pairs
        own = torch.arange(a.qk_size // 2, device=self.kept.device).expand(a.n_kv, -1)
        own = own if a.rotary_pairs is None else a.rotary_pairs.long()
        return torch.full_like(own, -1).scatter(1, self.kept, own.gather(1, self.kept))


METHOD = Method(
    name="mha2mla",
    paper="Towards Economical Inference: Enabling DeepSeek's Multi-Head Latent Attention in Any "
    "Transformer-based LLMs (Ji et al., ACL 2025)",
    notes="Keys keep their positions in a few rotary pairs of every head, cached as they are; the "
    "rest of the keys, without positions, and the values are computed from one cached latent, by "
    "SVD of the weights. Meant to be trained afterwards (heal). Its ratios are shares of the KV "
    "cache.",
    factor=factor,
    components=("kv",),
    needs=frozenset(),
    shrinks_kv=True,
    holds={"kv": ("k", "v")},
    options=Mha2mlaOptions,
    extra_needs={("pairs", "norm"): NORMS},
)
