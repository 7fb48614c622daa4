"""A3: an Analytical Low-Rank Approximation Framework for Attention. Three components, each solved for its own functional output.

QK: Theorem 3.2 (no rotary, MHA), joint SVD over the group (GQA, Appendix B), CUR on rotary pairs (rotary). OV: Theorem 3.3 (MHA), joint
SVD (GQA). MLP: CUR on the hidden neurons (eq. 15-16, unweighted as in its experiments). All in Gram space, `d_h x d_h`; the errors
equal those of the paper's `d x d` formulas. Theorem 3.3 is printed with a stray R^{-1/2} on W_o; here it is the one that is optimal.
"""

import torch
from torch import Tensor

from ..layer import Attention, Layer, output_heads
from ..linalg import eigh_descending, roots
from ..statistics import Moments
from .factors import ColumnOrder, Factors, HeadMaps, NeuronOrder, ValueMaps, mlp_cost, ov_cost, pooled, qk_cost
from .grams import by_group, head_gram, output_gram

NEEDS = frozenset(
    {("attn_in", "second"), ("attn_in", "mean"), ("attn_out", "second"), ("mlp_hidden", "second")},
)


def factor(layer: Layer, moments: Moments) -> Factors:
    """Solve QK, OV and MLP of one layer, those that it has, for all ranks."""
    a = layer.attention
    qk = qk_pairs if a.position == "rotary" else qk_svd if a.group == 1 else qk_joint
    ov = ov_svd if a.group == 1 else ov_joint
    solve = {"qk": lambda: qk(a, moments), "ov": lambda: ov(a, moments), "mlp": lambda: mlp_cur(layer, moments)}
    return {name: solve[name]() for name in layer.components}


def qk_svd(a: Attention, moments: Moments) -> HeadMaps:
    """Theorem 3.2: minimises E (q_i . k_i - q^_i . k^_i)^2 over independent tokens, per head.

    `U S V^T = svd(G_q^{1/2} G_k^{1/2})`, `T_q = S^{1/2} U^T G_q^{-1/2}`, `T_k = S^{1/2} V^T G_k^{-1/2}`; loss at rank r = sum_{j>=r} S_j^2.
    """
    q_root, q_inverse = roots(head_gram(a, "q", moments))
    k_root, k_inverse = roots(head_gram(a, "k", moments))
    u, s, vt = torch.linalg.svd(q_root @ k_root)
    scale = s.sqrt().unsqueeze(-1)
    return HeadMaps(pooled(s), qk_cost(a), s, scale * (u.mT @ q_inverse), scale * (vt @ k_inverse))


def qk_joint(a: Attention, moments: Moments) -> HeadMaps:
    """QK without rotary where a group of query heads shares a key head: the sum of Theorem 3.2's losses over the group.

    `V` = eigenvectors of `G_k^{1/2} (sum_i G_q,i) G_k^{1/2}`; `T_k = V^T G_k^{-1/2}`, `T_q,i = V^T G_k^{1/2}`.
    """
    k_root, k_inverse = roots(head_gram(a, "k", moments))
    squares, v = eigh_descending(k_root @ by_group(head_gram(a, "q", moments), a).sum(1) @ k_root)
    s = squares.sqrt()
    return HeadMaps(pooled(s), qk_cost(a), s, (v.mT @ k_root).repeat_interleave(a.group, 0), v.mT @ k_inverse)


def qk_pairs(a: Attention, moments: Moments) -> ColumnOrder:
    """QK with rotary: keep whole rotary pairs by `(G_q)_jj (G_k)_jj` on pre-rotary moments, summed over the pair and the group's heads.

    The loss curve is the sum of the scores dropped; cross terms between pairs are left out, as in the paper's CUR.
    """
    q = by_group(head_gram(a, "q", moments).diagonal(dim1=1, dim2=2), a)  # [n_kv, group, d_h]
    k = head_gram(a, "k", moments).diagonal(dim1=1, dim2=2).unsqueeze(1)
    scores = (q * k).sum(1).unflatten(-1, (2, -1)).sum(1)  # [n_kv, d_h / 2]
    scores, order = scores.sort(dim=-1, descending=True, stable=True)
    return ColumnOrder(pooled(scores.sqrt()), qk_cost(a, step=2), scores.sqrt(), order)


def ov_svd(a: Attention, moments: Moments) -> ValueMaps:
    """Theorem 3.3: minimises E |W_o,i a_i - W_o,i^ T_i a_i|^2 per head, a_i the head's output.

    `V` = eigenvectors of `G_a^{1/2} W_o^T W_o G_a^{1/2}`; `T = V^T G_a^{-1/2}`, `W_o^ = W_o G_a^{1/2} V`.
    """
    return per_head_values(a, output_gram(a, moments))


def per_head_values(a: Attention, gram: Tensor) -> ValueMaps:
    """The same for any moment of the head's state: E |W_o,i s - W_o,i^ T_i s|^2 is least, gram = E[s s^T] [n_q, d_h, d_h]. MHA only."""
    root, inverse = roots(gram)
    out = output_heads(a.o.weight.double(), a.n_q)  # [n_q, d, d_h]
    squares, v = eigh_descending(root @ (out.mT @ out) @ root)
    return ValueMaps(pooled(squares.sqrt()), ov_cost(a), squares.sqrt(), v.mT @ inverse, out @ root @ v)


def ov_joint(a: Attention, moments: Moments) -> ValueMaps:
    """OV where a group shares a value head: joint SVD on the moments of the value states.

    `V` = eigenvectors of `G_v^{1/2} (sum_i W_o,i^T W_o,i) G_v^{1/2}`; `T = V^T G_v^{-1/2}`, `W_o,i^ = W_o,i G_v^{1/2} V`.
    """
    root, inverse = roots(head_gram(a, "v", moments))
    out = output_heads(a.o.weight.double(), a.n_q)
    squares, v = eigh_descending(root @ by_group(out.mT @ out, a).sum(1) @ root)
    refit = by_group(out, a) @ (root @ v).unsqueeze(1)  # [n_kv, group, d, d_h]
    return ValueMaps(pooled(squares.sqrt()), ov_cost(a), squares.sqrt(), v.mT @ inverse, refit.flatten(0, 1))


def mlp_cur(layer: Layer, moments: Moments) -> NeuronOrder:
    """MLP: keep the neurons with the largest `E[z_j^2] |w_j|^2`, unscaled. The loss curve leaves out cross terms, as the paper does."""
    down = layer.mlp.down.weight.double()
    scores, order = (moments.square("mlp_hidden") * (down**2).sum(0)).sort(descending=True, stable=True)
    return NeuronOrder(scores.sqrt(), mlp_cost(layer.mlp), None, order)
