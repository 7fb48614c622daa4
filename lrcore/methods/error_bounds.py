"""Error bounds of MoDeGPT's Propositions 1-3, and the actual errors.

Errors are means: per token for the MLP and VO; per pair of independent tokens and before the score
scale, summed over heads, for QK. The paper sums over tokens; both sides of its inequalities scale
alike.
"""

import torch
from torch import Tensor

from ..layers.experts import expert_moments, expert_weights
from ..layers.layer import Layer, output_heads
from ..layers.linalg import (
    EPS,
    eigenvalues_descending,
    eigh_descending,
    leverage_complement,
    singular_values,
)
from ..layers.statistics import Moments
from ..system.threads import threads_for
from .attention_factors import ColumnOrder, ValueMaps
from .expert_factors import ExpertFactors
from .factors import NystromOrder, mlp_of
from .grams import by_group, head_gram

# the error, the bound (None if no statement applies), and the name of the statement
Bound = tuple[float, float | None, str]


def mlp_bound(
    layer: Layer, moments: Moments, factor: NystromOrder | ExpertFactors, rank: int
) -> Bound:
    """Return the bound of the MLP; for experts the sum, weighted by their shares in the output of
    the layer.
    """
    if isinstance(factor, NystromOrder):
        return nystrom_bound(layer, moments, factor, rank)
    by_expert = [
        mlp_bound(layer.of_expert(number), expert_moments(layer, moments, number), part, rank)
        for number, part in enumerate(factor.factors)
        if isinstance(part, NystromOrder)
    ]
    weights = expert_weights(layer, moments).tolist()
    bounds = [
        weight * bound for weight, (_, bound, _) in zip(weights, by_expert, strict=True) if bound
    ]
    error = sum(weight * error for weight, (error, _, _) in zip(weights, by_expert, strict=True))
    total = sum(bounds) if len(bounds) == len(by_expert) else None
    return error, total, ", ".join(sorted({statement for _, _, statement in by_expert}))


def nystrom_bound(layer: Layer, moments: Moments, factor: NystromOrder, rank: int) -> Bound:
    """Return the bound of Proposition 1:
    `V <= |W|^2 |C^{-1}| eps^2 n^2 / (k^2 (1 - eps)^2) sum_{i>k} sigma_i(C)^2` if eps < 1.

    eps is the sum of the removed ridge leverages at the ridge of its proof (McCurdy 2018),
    `sum_{i>k} sigma_i / k`; the bound holds for any selection. If eps >= 1 (a flat tail has eps = k
    (n - k) / n), the proposition does not apply and the bound is Theorem 1,
    `V <= |W|^2 |C^{-1}| |C - C_Nys|_F^2`. The bound is None for a singular C.
    """
    gram, weight = moments.second("mlp_hidden"), mlp_of(layer).down.weight.double()
    retained, dropped = factor.order[:rank], factor.order[rank:]
    gap = weight.clone()
    gap[:, retained] -= narrow_down(layer, factor, rank)
    error = float(((gap @ gram) * gap).sum())
    sigma, _ = eigh_descending(gram)
    if float(sigma[-1]) <= EPS * float(sigma[0]):
        return error, None, "singular C"
    scale = float(singular_values(weight)[0]) ** 2 / float(sigma[-1])
    eps = float((1 - leverage_complement(gram, float(sigma[rank:].sum()) / rank))[dropped].sum())
    if eps < 1:
        spread = (eps * len(sigma) / (rank * (1 - eps))) ** 2
        return error, scale * spread * float((sigma[rank:] ** 2).sum()), "Proposition 1"
    # L_22: C - C_Nys = L_22 L_22^T in the order of the factor
    lower = factor.cholesky.leading(len(gram))[rank:, rank:]
    return error, scale * float(torch.linalg.matrix_norm(lower @ lower.mT)) ** 2, "Theorem 1"


def narrow_down(layer: Layer, factor: NystromOrder, rank: int) -> Tensor:
    """Return the down projection at this rank [d, rank], in ascending order of the retained
    neurons.
    """
    return mlp_of(factor.truncate(layer, rank)).down.weight.double()


def qk_bound(layer: Layer, moments: Moments, factor: ColumnOrder, rank: int) -> Bound:
    """Return the bound of Proposition 2:
    `V <= ((d_h - k) / d_h)^2 (sum_i sigma_i(C_K)) (sum_i sigma_i(C_Q))`, per kv head, C_Q summed
    over its group.

    The error of removing the columns P is exact: `sum_{j,l in P} (C_Q)_jl (C_K)_jl`. Pairs are
    removed completely, for which the proof also holds. Reads the second moments of q_rotated and
    k_rotated.
    """
    a, step = layer.attention, factor.cost.step
    query = by_group(head_blocks(moments.second("q_rotated"), a.n_q), a).sum(1)  # [n_kv, d_h, d_h]
    key = head_blocks(moments.second("k_rotated"), a.n_kv)
    if factor.maps is not None:
        query, key = (
            maps @ gram @ maps.mT for maps, gram in zip(factor.maps, (query, key), strict=True)
        )
    pairs = factor.order[:, rank // step :]
    columns = pairs if step == 1 else torch.cat((pairs, pairs + a.qk_size // 2), dim=-1)
    products, head = query * key, torch.arange(a.n_kv, device=key.device).view(-1, 1, 1)
    error = float(products[head, columns.unsqueeze(2), columns.unsqueeze(1)].sum())
    traces = query.diagonal(dim1=1, dim2=2).sum(-1) * key.diagonal(dim1=1, dim2=2).sum(-1)
    return error, ((a.qk_size - rank) / a.qk_size) ** 2 * float(traces.sum()), "Proposition 2"


def head_blocks(second: Tensor, count: int) -> Tensor:
    """Return the diagonal blocks of stacked heads: [count * size, count * size] -> [count, size,
    size].
    """
    size = len(second) // count
    return second.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def vo_bound(layer: Layer, moments: Moments, factor: ValueMaps, rank: int) -> Bound:
    """Return the bound of Proposition 3, MHA: `V = sum_{j>k} sigma_j(C^{1/2} W_v W_o)^2`.

    It is attained: these are the eigenvalues of `W_o G_v W_o^T`, of which d_h are not zero. For GQA
    the paper has no bound; the principal directions of its algorithm lose at most
    `|W_o,i|^2 sum_{j>k} lambda_j(G_v)` per head.
    """
    a = layer.attention
    gram = head_gram(a, "v", moments).repeat_interleave(a.group, 0)  # [n_q, d_h, d_h]
    out = output_heads(a.o.weight.double(), a.n_q)  # [n_q, d, d_h]
    gap = out - factor.out[..., :rank] @ factor.v_maps[:, :rank].repeat_interleave(a.group, 0)
    error = float(((gap @ gram) * gap).sum())
    if a.group == 1:
        energy, v = eigh_descending(gram)
        root = v * energy.sqrt().unsqueeze(-2)  # G = root root^T
        with threads_for(root):
            tail = torch.linalg.svdvals(out @ root)[:, rank:] ** 2
        return error, float(tail.sum()), "Proposition 3"
    norms = eigenvalues_descending(out.mT @ out)[:, 0]  # |W_o,i|^2
    tail = eigh_descending(gram)[0][:, rank:].sum(-1)
    return error, float((norms * tail).sum()), "Eckart-Young on the values"


BOUNDS = {"qk": qk_bound, "ov": vo_bound, "mlp": mlp_bound}
NEEDS = frozenset(
    {
        ("attn_in", "second"),
        ("attn_in", "mean"),
        ("q_rotated", "second"),
        ("k_rotated", "second"),
        ("mlp_hidden", "second"),
    }
)
