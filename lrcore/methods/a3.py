"""A3: an Analytical Low-Rank Approximation Framework for Attention.

Three components, each solved for its functional output:

* QK: Theorem 3.2 (MHA without rotary), joint SVD over the group (GQA without rotary, Appendix B),
  CUR on rotary pairs (rotary).
* OV: Theorem 3.3 (MHA), joint SVD (GQA).
* MLP: CUR on the hidden neurons (eq. 15-16, unweighted as in the paper's experiments).

All computations use `d_h x d_h` Gram matrices; the errors equal those of the paper's `d x d`
formulas. Theorem 3.3 is printed with an additional R^{-1/2} on W_o; the code has the optimal
assignment.

The options are those of the paper's Appendix B.2.3 and E: QK without the data of one side
(A3-Q-only, A3-K-only) or of both (CLOVER); alternative scores of the rotary pairs; OV from the
input of the layer (A3-x_kv), or over all heads jointly (Theorem B.1), which saves parameters and
needs a larger cache.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.layer import Attention, Layer, output_heads
from ..layers.linalg import column_squares, eigh_descending, roots
from ..layers.statistics import Moments
from ..system.settings import option
from ..system.threads import threads_for
from .attention_factors import ColumnOrder, HeadMaps, SummedValues, ValueMaps
from .attention_scores import (
    column_order,
    joint_blocks,
    joint_scores,
    sum_pairs,
    unrotated_directions,
    unrotated_pairs,
)
from .costs import mlp_cost, ov_cost, qk_cost, summed_ov_cost
from .expert_factors import EachExpert
from .factors import LayerFactors, NeuronOrder, mlp_of, pooled
from .grams import by_group, diagonal_input, head_gram, identity_input, output_gram
from .method import COMPONENT_MATRICES, COMPONENTS, MATRICES, Method
from .ranking import column_products, magnitudes, neuron_scores, value_scores


@dataclass(frozen=True)
class A3Options:
    qk: str = option(
        "both",
        "sides of the scores that are weighted by the data; weights: none (CLOVER)",
        choices=("both", "q_only", "k_only", "weights"),
    )
    scores: str = option(
        "a3",
        "criterion for rotary pairs; no effect without rotary",
        choices=("a3", "abs", "wanda", "random"),
    )
    seed: int = option(
        0,
        "seed of scores=random",
        low=0,
    )
    ov: str = option(
        "heads",
        "heads: moments of the output of each head; inputs: of the input of the layer; weights: "
        "none (CLOVER); overall: all heads jointly, with a larger KV cache; abs, wanda, taylor: "
        "selected columns of the values",
        choices=("heads", "inputs", "weights", "overall", "abs", "wanda", "taylor"),
    )
    mlp: str = option(
        "a3",
        "criterion for neurons; taylor: weight times gradient, from a backward pass per "
        "calibration window",
        choices=("a3", "abs", "wanda", "taylor"),
    )


NEEDS = frozenset(
    {("attn_in", "second"), ("attn_in", "mean"), ("attn_out", "second"), ("mlp_hidden", "square")},
)


DEFAULT = A3Options()


def factor(layer: Layer, moments: Moments, options: A3Options = DEFAULT) -> LayerFactors:
    """Return the factors of QK, OV and MLP of a layer, if present, for all ranks."""
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
        # The heads of a group share their value states, whose moments follow from the layer's
        # input: ov=heads and ov=inputs are the same.
        return ov_joint(a, moments)
    return ov_svd(a, moments) if ov == "heads" else per_head_values(a, head_gram(a, "v", moments))


def score_grams(a: Attention, moments: Moments, qk: str = "both") -> tuple[Tensor, Tensor]:
    """Return the metrics of the QK problem: second moments of the query states [n_q, d_h, d_h] and
    of the key states [n_kv, d_h, d_h].

    "q_only" and "k_only" replace the input moment of the opposite side by the identity (the paper's
    A3-Q-only, A3-K-only), "weights" that of both sides (CLOVER). The Gram matrix of such a side is
    `W W^T`; a bias counts as an additional input column.
    """
    identity = identity_input(a)
    query = head_gram(a, "q", moments if qk in ("both", "q_only") else identity)
    return query, head_gram(a, "k", moments if qk in ("both", "k_only") else identity)


def qk_svd(a: Attention, moments: Moments, qk: str = "both") -> HeadMaps:
    """Return the maps of Theorem 3.2, which minimize E (q_i . k_i - q^_i . k^_i)^2 over independent
    tokens, per head.

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
    """Return the maps of QK without rotary for GQA, which minimize the sum of Theorem 3.2's losses
    over the group.

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
    """Return the order of the rotary pairs by `(G_q)_jj (G_k)_jj` on pre-rotary moments, summed
    over the pair and the group's heads.

    The loss curve is the sum of the products of the removed pairs, for every ranking; cross terms
    between pairs are neglected, as in the paper's CUR. Alternative rankings, after the paper's
    footnote 1: "abs" uses sums of magnitudes instead of the moments, "wanda" uses only the diagonal
    of the input's moments, and "random" is a permutation determined by seed. With A3's scores,
    unrotated columns are narrowed by the closed form of `qk_joint`; with the alternative scores
    they are ranked as pairs.
    """
    query, key = score_grams(a, moments, qk)
    squares, unrotated = _column_losses(a, query, key), unrotated_pairs(a)
    if scores == "a3":
        maps = None
        if unrotated is not None:
            solve = joint_blocks(by_group(query, a).sum(1), key)
            squares, maps = unrotated_directions(squares, unrotated, solve)
        losses = sum_pairs(squares)
        return column_order(a, losses, losses, maps)
    if scores == "wanda":
        ranking = sum_pairs(_column_losses(a, *score_grams(a, diagonal_input(moments), qk)))
    elif scores == "abs":
        ranking = sum_pairs(column_products(magnitudes(a.q, a.n_q), magnitudes(a.k, a.n_kv), a))
    else:
        generator = torch.Generator().manual_seed(seed)
        size = (a.n_kv, a.qk_size // 2)
        ranking = torch.rand(size, generator=generator, dtype=torch.float32).to(squares.device)
    return column_order(a, sum_pairs(squares), ranking)


def _column_losses(a: Attention, query: Tensor, key: Tensor) -> Tensor:
    return column_products(query.diagonal(dim1=1, dim2=2), key.diagonal(dim1=1, dim2=2), a)


def ov_svd(a: Attention, moments: Moments) -> ValueMaps:
    """Return the maps of Theorem 3.3, which minimize E |W_o,i a_i - W_o,i^ T_i a_i|^2 per head, a_i
    the output of the head.

    With `V` the eigenvectors of `G_a^{1/2} W_o^T W_o G_a^{1/2}`, `T = V^T G_a^{-1/2}` and
    `W_o^ = W_o G_a^{1/2} V`.
    """
    return per_head_values(a, output_gram(a, moments))


def per_head_values(a: Attention, gram: Tensor) -> ValueMaps:
    """Return the maps of Theorem 3.3 for any state s of the heads, which minimize E |W_o,i s_i -
    W_o,i^ T_i s_i|^2 per head. MHA only.

    gram: E[s_i s_i^T] [n_q, d_h, d_h].
    """
    root, inverse = roots(gram)
    out = output_heads(a.o.weight.double(), a.n_q)  # [n_q, d, d_h]
    squares, v = eigh_descending(root @ (out.mT @ out) @ root)
    return ValueMaps(
        pooled(squares.sqrt()), ov_cost(a), squares.sqrt(), v.mT @ inverse, out @ root @ v
    )


def ov_joint(a: Attention, moments: Moments) -> ValueMaps:
    """Return the maps of OV for GQA, by joint SVD on the moments of the value states.

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
    """Return OV by selection: the most important columns of each value head, with the columns of
    the output projection that read them.

    The loss curve is the sum of `E[a_j^2] |w_j|^2` over the removed columns; cross terms are
    neglected. kind: see `ranking.value_scores`.
    """
    a = layer.attention
    order = value_scores(layer, moments, kind).sort(descending=True, stable=True).indices
    losses = moments.square("attn_out") * column_squares(a.o.weight)
    by_head = by_group(losses.unflatten(0, (a.n_q, -1)), a).sum(1)  # [n_kv, v_size]
    curves = by_head.gather(-1, order).sqrt()
    out = output_heads(a.o.weight.double(), a.n_q)  # [n_q, d, v_size]
    columns = order.repeat_interleave(a.group, 0).unsqueeze(1).expand_as(out)
    maps = torch.eye(a.v_size, dtype=out.dtype, device=out.device)[order]
    return ValueMaps(pooled(curves), ov_cost(a), curves, maps, out.gather(-1, columns))


def ov_overall(a: Attention, moments: Moments) -> SummedValues:
    """Return the maps of Theorem B.1, OV stacked over the heads, which minimize E |sum_i W_o,i a_i
    - O^|^2 over all maps of rank r.

    With `O = P_cat W_cat` the optimum `P_cat W_cat V_r V_r^T` projects the output onto its
    principal directions `V`, the eigenvectors of `E[O O^T] = W_o E[a a^T] W_o^T` [d, d]; no moment
    of P_cat (`[n d, n d]`) is needed. Every query head then caches r separate values, and the heads
    share the output projection; `summed_ov_cost` counts both.
    """
    out = a.o.weight.double()
    squares, v = eigh_descending(out @ moments.second("attn_out") @ out.mT)
    return SummedValues(squares.sqrt(), summed_ov_cost(a), None, v)


def mlp_cur(layer: Layer, moments: Moments, mlp: str = "a3") -> NeuronOrder:
    """Return the order of the neurons by `E[z_j^2] |w_j|^2`; the first are retained without
    scaling.

    The loss curve is the sum of these products over the removed neurons, for every ranking; cross
    terms are neglected, as in the paper. Alternative rankings are the baselines of the papers'
    tables, see `neuron_scores`.
    """
    m = mlp_of(layer)
    losses = moments.square("mlp_hidden") * column_squares(m.down.weight)
    ranking = losses if mlp == "a3" else neuron_scores(layer, moments, mlp)
    order = ranking.sort(descending=True, stable=True).indices
    return NeuronOrder(losses[order].sqrt(), mlp_cost(m), None, order)


METHOD = Method(
    name="a3",
    paper="A3: an Analytical Low-Rank Approximation Framework for Attention",
    summary="Narrows attention heads and MLPs, with the least error of each component's output.",
    notes="QK: SVD without rotary (joint over a GQA group), complete rotary pairs by CUR with "
    "rotary. OV: per head (MHA), joint (GQA). MLP: CUR on neurons. Biases enter the moments and "
    "are mapped with the weights. Additions to the paper: GQA with rotary scores a pair by the sum "
    "over the heads that share its key; pairs are (j, j + d_h / 2), as in checkpoints; unrotated "
    "columns (partial rotary) are narrowed by the SVD, two directions in place of a pair; OV has "
    "the same rule with and without rotary; ov=overall with GQA gives each query head separate "
    "values.",
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
