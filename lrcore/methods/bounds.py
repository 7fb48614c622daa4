"""The error bounds of MoDeGPT's Propositions 1-3, beside the errors they bound.

Units are means: of the MLP and VO per token, of QK per pair of independent tokens and before the
score scale, summed over heads. The paper sums over tokens; both sides of its inequalities scale
alike.
"""

import torch
from torch import Tensor

from ..experts import expert_moments, shares
from ..layer import Layer, output_heads
from ..linalg import (
    EPS,
    eigenvalues_descending,
    eigh_descending,
    leverage_complement,
    singular_values,
)
from ..statistics import Moments
from ..threads import threads_for
from .attention_factors import ColumnOrder, ValueMaps
from .experts import ExpertFactors
from .factors import NystromOrder, mlp_of
from .grams import by_group, head_gram

# the error, its bound (None: nothing bounds it), and the statement that gives the bound
Bound = tuple[float, float | None, str]


def mlp_bound(
    layer: Layer, moments: Moments, factor: NystromOrder | ExpertFactors, rank: int
) -> Bound:
    """That of the MLP; of experts the sum, each by its share in the output of the layer."""
    if isinstance(factor, NystromOrder):
        return nystrom_bound(layer, moments, factor, rank)
    each = [
        mlp_bound(layer.of_expert(number), expert_moments(layer, moments, number), one, rank)
        for number, one in enumerate(factor.each)
        if isinstance(one, NystromOrder)
    ]
    by = shares(layer, moments).tolist()
    bounds = [share * bound for share, (_, bound, _) in zip(by, each, strict=True) if bound]
    error = sum(share * error for share, (error, _, _) in zip(by, each, strict=True))
    known = sum(bounds) if len(bounds) == len(each) else None
    return error, known, ", ".join(sorted({statement for _, _, statement in each}))


def nystrom_bound(layer: Layer, moments: Moments, factor: NystromOrder, rank: int) -> Bound:
    """Proposition 1: `V <= |W|^2 |C^{-1}| eps^2 n^2 / (k^2 (1 - eps)^2) sum_{i>k} sigma_i(C)^2`
    where eps < 1.

    eps is the sum of the removed ridge leverages at the ridge of its proof (McCurdy 2018),
    `sum_{i>k} sigma_i / k`; it holds for any kept set. Where eps >= 1 (a flat tail has
    eps = k (n - k) / n) the proposition says nothing; the bound is then Theorem 1,
    `V <= |W|^2 |C^{-1}| |C - C_Nys|_F^2`. None for a singular C.
    """
    gram, weight = moments.second("mlp_hidden"), mlp_of(layer).down.weight.double()
    kept, dropped = factor.order[:rank], factor.order[rank:]
    gap = weight.clone()
    gap[:, kept] -= narrow_down(layer, factor, rank)
    error = float(((gap @ gram) * gap).sum())
    sigma, _ = eigh_descending(gram)
    if float(sigma[-1]) <= EPS * float(sigma[0]):
        return error, None, "singular C"
    scale = float(singular_values(weight)[0]) ** 2 / float(sigma[-1])
    eps = float((1 - leverage_complement(gram, float(sigma[rank:].sum()) / rank))[dropped].sum())
    if eps < 1:
        spread = (eps * len(sigma) / (rank * (1 - eps))) ** 2
        return error, scale * spread * float((sigma[rank:] ** 2).sum()), "Proposition 1"
    rest = factor.cholesky.leading(len(gram))[
        rank:, rank:
    ]  # C - C_Nys = L_22 L_22^T in the factor's order
    return error, scale * float(torch.linalg.matrix_norm(rest @ rest.mT)) ** 2, "Theorem 1"


def narrow_down(layer: Layer, factor: NystromOrder, rank: int) -> Tensor:
    """The down projection at this rank [d, rank], in the order of the kept neurons."""
    return mlp_of(factor.truncate(layer, rank)).down.weight.double()


def qk_bound(layer: Layer, moments: Moments, factor: ColumnOrder, rank: int) -> Bound:
    """Proposition 2: `V <= ((d_h - k) / d_h)^2 (sum_i sigma_i(C_K)) (sum_i sigma_i(C_Q))`, per kv
    head, C_Q summed over its group.

    The error of removing the columns P is exact: `sum_{j,l in P} (C_Q)_jl (C_K)_jl`. Pairs are
    removed whole, for which the proof holds as well. Reads the second moments of q_rotated and
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
    """The diagonal blocks of stacked heads: [count * size, count * size] -> [count, size, size]."""
    size = len(second) // count
    return second.reshape(count, size, count, size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def vo_bound(layer: Layer, moments: Moments, factor: ValueMaps, rank: int) -> Bound:
    """Proposition 3, MHA: `V = sum_{j>k} sigma_j(C^{1/2} W_v W_o)^2`, which is attained: the
    eigenvalues of `W_o G_v W_o^T`, of which d_h are not zero.

    For GQA the paper states no bound; the principal directions of its algorithm lose at most
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
