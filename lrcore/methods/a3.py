"""A3: an Analytical Low-Rank Approximation Framework for Attention.

Three components, each solved for its own functional output:

* QK: Theorem 3.2 (MHA without rotary), joint SVD over the group (GQA without rotary, Appendix B),
  CUR on rotary pairs (rotary).
* OV: Theorem 3.3 (MHA), joint SVD (GQA).
* MLP: CUR on the hidden neurons (eq. 15-16, unweighted as in the paper's experiments).

Everything is computed on `d_h x d_h` Gram matrices; the errors equal those of the paper's `d x d`
formulas. Theorem 3.3 is printed with a stray R^{-1/2} on W_o; here it is the optimal one.

The options are those of the paper's Appendix B.2.3 and E: QK without the data on one side
(A3-Q-only, A3-K-only) or on both (CLOVER); other scores for the rotary pairs; OV from the layer's
input (A3-x_kv), or over all heads at once (Theorem B.1), which saves parameters and needs more
cache.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layer import Attention, Layer, output_heads
from ..linalg import column_squares, eigh_descending, roots
from ..options import option
from ..statistics import Moments
from ..threads import threads_for
from .attention_factors import ColumnOrder, HeadMaps, SummedValues, ValueMaps
from .costs import mlp_cost, ov_cost, qk_cost, summed_ov_cost
from .experts import EachExpert
from .factors import LayerFactors, NeuronOrder, mlp_of, pooled
from .grams import by_group, diagonal_input, head_gram, identity_input, output_gram
from .method import COMPONENT_MATRICES, COMPONENTS, MATRICES, Method
from .ranking import column_products, magnitudes, neuron_scores, value_scores
from .scores import (
    by_pairs,
    joint_blocks,
    joint_scores,
    ordered,
    still_directions,
    still_pairs,
)


@dataclass(frozen=True)
class A3Options:
    qk: str = option(
        "both",
        "side of the scores that is weighted by the data; weights: neither (CLOVER)",
        choices=("both", "q_only", "k_only", "weights"),
    )
    scores: str = option(
        "a3",
        "criterion by which rotary pairs are kept; no effect without rotary",
        choices=("a3", "abs", "wanda", "random"),
    )
    seed: int = option(
        0,
        "seed of scores=random",
        low=0,
    )
    ov: str = option(
        "heads",
        "moments of each head's output; of the layer's input; of neither (weights: CLOVER); all "
        "heads at once, with a larger KV cache; or columns of the values by abs, wanda or taylor",
        choices=("heads", "inputs", "weights", "overall", "abs", "wanda", "taylor"),
    )
    mlp: str = option(
        "a3",
        "criterion by which neurons are kept; taylor: weight times gradient, from one backward "
        "pass per calibration window",
        choices=("a3", "abs", "wanda", "taylor"),
    )


NEEDS = frozenset(
    {("attn_in", "second"), ("attn_in", "mean"), ("attn_out", "second"), ("mlp_hidden", "second")},
)


DEFAULT = A3Options()


def factor(layer: Layer, moments: Moments, options: A3Options = DEFAULT) -> LayerFactors:
    """Solve QK, OV and MLP of one layer, those that it has, for all ranks."""
    a, qk = layer.attention, options.qk

    def solve_qk() -> HeadMaps | ColumnOrder:
        if a.position == "rotary":
            return qk_pairs(a, moments, qk, options.scores, options.seed + layer.index)
        return qk_svd(a, moments, qk) if a.group == 1 else qk_joint(a, moments, qk)

    solve = {
        "qk": solve_qk,
        "ov": lambda: _values(layer, moments, options.ov),
        "mlp": lambda: mlp_cur(layer, moments, options.mlp),
    }
    return {name: solve[name]() for name in layer.components}


def _values(layer: Layer, moments: Moments, ov: str) -> ValueMaps | SummedValues:
    a = layer.attention
    if ov == "overall":
        return ov_overall(a, moments)
    if ov in ("abs", "wanda", "taylor"):
        return ov_columns(layer, moments, ov)
    if ov == "weights":
        moments = identity_input(a)
    if a.group > 1:
        # heads that share their values share the moments of the layer's input already
        return ov_joint(a, moments)
    return ov_svd(a, moments) if ov == "heads" else per_head_values(a, head_gram(a, "v", moments))


def score_grams(a: Attention, moments: Moments, qk: str = "both") -> tuple[Tensor, Tensor]:
    """The metrics of the QK problem: second moments of the query states [n_q, d_h, d_h] and of the
    key states [n_kv, d_h, d_h].

    "q_only" and "k_only" put the identity in place of the other side's input moment (the paper's
    A3-Q-only, A3-K-only), "weights" in place of both (CLOVER). The Gram matrix of such a side is
    `W W^T`; a bias counts as one more input column.
    """
    blind = identity_input(a)
    query = head_gram(a, "q", moments if qk in ("both", "q_only") else blind)
    return query, head_gram(a, "k", moments if qk in ("both", "k_only") else blind)


def qk_svd(a: Attention, moments: Moments, qk: str = "both") -> HeadMaps:
    """Theorem 3.2: minimises E (q_i . k_i - q^_i . k^_i)^2 over independent tokens, per head.

    `U S V^T = svd(G_q^{1/2} G_k^{1/2})`; q_maps `T_q = S^{1/2} U^T G_q^{-1/2}` [n_q, d_h, d_h],
    k_maps `T_k = S^{1/2} V^T G_k^{-1/2}` [n_kv, d_h, d_h]. The loss at rank r is sum_{j>=r} S_j^2.
    """
    query, key = score_grams(a, moments, qk)
    (q_root, q_inverse), (k_root, k_inverse) = roots(query), roots(key)
    with threads_for(q_root):
        u, s, vt = torch.linalg.svd(q_root @ k_root)
    scale = s.sqrt().unsqueeze(-1)
    return HeadMaps(pooled(s), qk_cost(a), s, scale * (u.mT @ q_inverse), scale * (vt @ k_inverse))


def qk_joint(a: Attention, moments: Moments, qk: str = "both") -> HeadMaps:
    """QK without rotary where a group of query heads shares a key head: the sum of Theorem 3.2's
    losses over the group.

    With `V` the eigenvectors of `G_k^{1/2} (sum_i G_q,i) G_k^{1/2}`, `T_k = V^T G_k^{-1/2}` and
    `T_q,i = V^T G_k^{1/2}`.
    """
    query, key = score_grams(a, moments, qk)
    squares, q_maps, k_maps = joint_scores(by_group(query, a).sum(1), key)
    s = squares.sqrt()
    return HeadMaps(pooled(s), qk_cost(a), s, q_maps.repeat_interleave(a.group, 0), k_maps)


def qk_pairs(
    a: Attention, moments: Moments, qk: str = "both", scores: str = "a3", seed: int = 0
) -> ColumnOrder:
    """QK with rotary: whole rotary pairs are kept by `(G_q)_jj (G_k)_jj` on pre-rotary moments,
    summed over the pair and the group's heads.

    The loss curve is the sum of the removed pairs' products, whatever the pairs are ranked by;
    cross terms between pairs are left out, as in the paper's CUR. Other rankings, after the paper's
    footnote 1: "abs" takes sums of magnitudes in place of the moments, "wanda" the input's moments
    without their off-diagonal entries, "random" a permutation drawn with seed. Columns that do not
    turn are narrowed by `qk_joint`'s closed form under A3's own scores, and are pairs as they stand
    under the others.
    """
    query, key = score_grams(a, moments, qk)
    squares, still = _column_losses(a, query, key), still_pairs(a)
    if scores == "a3":
        maps = None
        if still is not None:
            solve = joint_blocks(by_group(query, a).sum(1), key)
            squares, maps = still_directions(squares, still, solve)
        losses = by_pairs(squares)
        return ordered(a, losses, losses, maps)
    if scores == "wanda":
        ranking = by_pairs(_column_losses(a, *score_grams(a, diagonal_input(moments), qk)))
    elif scores == "abs":
        ranking = by_pairs(column_products(magnitudes(a.q, a.n_q), magnitudes(a.k, a.n_kv), a))
    else:
        generator = torch.Generator().manual_seed(seed)
        size = (a.n_kv, a.qk_size // 2)
        ranking = torch.rand(size, generator=generator, dtype=torch.float32).to(squares.device)
    return ordered(a, by_pairs(squares), ranking)


def _column_losses(a: Attention, query: Tensor, key: Tensor) -> Tensor:
    return column_products(query.diagonal(dim1=1, dim2=2), key.diagonal(dim1=1, dim2=2), a)


def ov_svd(a: Attention, moments: Moments) -> ValueMaps:
    """Theorem 3.3: minimises E |W_o,i a_i - W_o,i^ T_i a_i|^2 per head, a_i the head's output.

    With `V` the eigenvectors of `G_a^{1/2} W_o^T W_o G_a^{1/2}`, `T = V^T G_a^{-1/2}` and
    `W_o^ = W_o G_a^{1/2} V`.
    """
    return per_head_values(a, output_gram(a, moments))


def per_head_values(a: Attention, gram: Tensor) -> ValueMaps:
    """Theorem 3.3 for any state s of the heads: minimises E |W_o,i s_i - W_o,i^ T_i s_i|^2 per
    head. MHA only.

    gram: E[s_i s_i^T] [n_q, d_h, d_h].
    """
    root, inverse = roots(gram)
    out = output_heads(a.o.weight.double(), a.n_q)  # [n_q, d, d_h]
    squares, v = eigh_descending(root @ (out.mT @ out) @ root)
    return ValueMaps(
        pooled(squares.sqrt()), ov_cost(a), squares.sqrt(), v.mT @ inverse, out @ root @ v
    )


def ov_joint(a: Attention, moments: Moments) -> ValueMaps:
    """OV where a group of query heads shares a value head: joint SVD on the moments of the value
    states.

    With `V` the eigenvectors of `G_v^{1/2} (sum_i W_o,i^T W_o,i) G_v^{1/2}`, `T = V^T G_v^{-1/2}`
    and `W_o,i^ = W_o,i G_v^{1/2} V`.
    """
    root, inverse = roots(head_gram(a, "v", moments))
    out = output_heads(a.o.weight.double(), a.n_q)
    squares, v = eigh_descending(root @ by_group(out.mT @ out, a).sum(1) @ root)
    refit = by_group(out, a) @ (root @ v).unsqueeze(1)  # [n_kv, group, d, d_h]
    return ValueMaps(
        pooled(squares.sqrt()), ov_cost(a), squares.sqrt(), v.mT @ inverse, refit.flatten(0, 1)
    )


def ov_columns(layer: Layer, moments: Moments, kind: str) -> ValueMaps:
    """OV by selection: of every value head the columns of largest importance are kept, with the
    columns of the output projection that read them.

    The loss curve is the sum of `E[a_j^2] |w_j|^2` over the columns removed; cross terms are left
    out. kind: see `ranking.value_scores`.
    """
    a = layer.attention
    order = value_scores(layer, moments, kind).sort(descending=True, stable=True).indices
    losses = moments.square("attn_out") * column_squares(a.o.weight)
    own = by_group(losses.unflatten(0, (a.n_q, -1)), a).sum(1).gather(-1, order).sqrt()
    out = output_heads(a.o.weight.double(), a.n_q)  # [n_q, d, v_size]
    places = order.repeat_interleave(a.group, 0).unsqueeze(1).expand_as(out)
    maps = torch.eye(a.v_size, dtype=out.dtype, device=out.device)[order]
    return ValueMaps(pooled(own), ov_cost(a), own, maps, out.gather(-1, places))


def ov_overall(a: Attention, moments: Moments) -> SummedValues:
    """Theorem B.1, OV stacked over the heads: minimises E |sum_i W_o,i a_i - O^|^2 over all maps of
    rank r at once.

    With `O = P_cat W_cat` the optimum `P_cat W_cat V_r V_r^T` projects the output on its own
    principal directions `V`, the eigenvectors of `E[O O^T] = W_o E[a a^T] W_o^T` [d, d]; no moment
    of P_cat (`[n d, n d]`) is needed. Every query head then caches r values of its own, and the
    heads share the output projection; `summed_ov_cost` counts both.
    """
    out = a.o.weight.double()
    squares, v = eigh_descending(out @ moments.second("attn_out") @ out.mT)
    return SummedValues(squares.sqrt(), summed_ov_cost(a), None, v)


def mlp_cur(layer: Layer, moments: Moments, mlp: str = "a3") -> NeuronOrder:
    """MLP: the neurons with the largest `E[z_j^2] |w_j|^2` are kept, unscaled.

    The loss curve is the sum of these products over the removed neurons, whatever the neurons are
    ranked by; cross terms are left out, as in the paper. Other rankings are the baselines of the
    papers' tables, see `neuron_scores`.
    """
    m = mlp_of(layer)
    losses = moments.square("mlp_hidden") * column_squares(m.down.weight)
    ranking = losses if mlp == "a3" else neuron_scores(layer, moments, mlp)
    order = ranking.sort(descending=True, stable=True).indices
    return NeuronOrder(losses[order].sqrt(), mlp_cost(m), None, order)


METHOD = Method(
    name="a3",
    paper="A3: an Analytical Low-Rank Approximation Framework for Attention",
    notes="QK: SVD without rotary (joint over a GQA group), whole rotary pairs by CUR with "
    "rotary. OV: per head (MHA), joint (GQA). MLP: CUR on neurons. Biases enter the moments and "
    "are mapped with the weights. Rules for what the paper leaves open: GQA with rotary scores a "
    "pair by the sum over the heads that share its key; pairs are (j, j + d_h / 2), as "
    "checkpoints store them; columns that do not turn (partial rotary) are narrowed by the SVD, "
    "two directions in the place of a pair; OV has one rule with and without rotary; ov=overall "
    "with GQA gives each query head values of its own.",
    factor=EachExpert(factor),
    components=COMPONENTS,
    needs=NEEDS,
    shrinks_kv=True,
    holds=COMPONENT_MATRICES,
    options=A3Options,
    extra_needs={
        ("mlp", "taylor"): frozenset((name, "taylor") for name in MATRICES),
        ("ov", "taylor"): frozenset((name, "taylor") for name in MATRICES),
    },
    copies=0,
)
