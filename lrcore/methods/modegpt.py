"""MoDeGPT: Modular Decomposition for Large Language Model Compression.

One matrix decomposition per type of module:

* Type I, MLP: Nystrom approximation on ridge leverage scores (Algorithm 1).
* Type II, QK: CR decomposition (Algorithm 2). With rotary, on post-rotary correlations and of whole
  rotary pairs: a selection of single columns does not commute with the rotation.
* Type III, VO: SVD on the value states (Algorithm 3, in two stages; here in an equivalent
  `d_h x d_h` form). GQA as in the paper's appendix.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..layer import Attention, Layer, output_heads
from ..linalg import eigh_descending, leverage_complement, reordered_cholesky, times_lower
from ..lower import Lower
from ..options import NO_OPTIONS, NoOptions
from ..statistics import Moments
from .a3 import per_head_values
from .attention_factors import ColumnOrder, ValueMaps
from .costs import mlp_cost, ov_cost
from .experts import EachExpert
from .factors import Factor, LayerFactors, NystromOrder, mlp_of, pooled
from .grams import by_group, head_gram
from .method import COMPONENT_MATRICES, COMPONENTS, Method
from .ranking import column_products
from .scores import Solve, by_pairs, ordered, still_directions, still_pairs

NEEDS = frozenset(
    {
        ("attn_in", "second"),
        ("attn_in", "mean"),
        ("q_rotated", "square"),
        ("k_rotated", "square"),
        ("mlp_hidden", "second"),
    },
)
RIDGE = 1.0  # lambda of the leverage scores, on sums over tokens
DAMPING = 1e-8  # of the refit, see `linalg.dampings`


def factor(layer: Layer, moments: Moments, options: NoOptions = NO_OPTIONS) -> LayerFactors:
    """Solve QK, OV and MLP of one layer, those that it has, for all ranks."""
    a = layer.attention
    vo = vo_svd if a.group == 1 else vo_group
    solve: dict[str, Callable[[], Factor]] = {
        "qk": lambda: qk_cr(a, moments),
        "ov": lambda: vo(a, moments),
        "mlp": lambda: mlp_nystrom(layer, moments),
    }
    return {name: solve[name]() for name in layer.components}


def qk_cr(a: Attention, moments: Moments) -> ColumnOrder:
    """Type II: keep the columns with the largest
    `|C_q^{1/2}[:, j]| |C_k^{1/2}[:, j]| = sqrt((C_q)_jj (C_k)_jj)`, over the heads of the group.

    The norm of a column of the root is the root of the diagonal entry, so no root of a matrix is
    taken. With rotary the score is summed over the pair; columns that do not turn are paired by
    their own scores, the best with the second best.
    """
    squares, still, maps = column_losses(a, moments), still_pairs(a), None
    if a.position != "rotary":
        return ordered(a, squares, squares.sqrt())
    if still is not None:
        squares, maps = still_directions(squares, still, _sorted_columns(squares))
    return ordered(a, by_pairs(squares), by_pairs(squares.sqrt()), maps)


def column_losses(a: Attention, moments: Moments) -> Tensor:
    """`(C_q)_jj (C_k)_jj` as they enter the score, over the heads of the group: [n_kv, d_h]."""
    q = moments.square("q_rotated").unflatten(0, (a.n_q, -1))
    return column_products(q, moments.square("k_rotated").unflatten(0, (a.n_kv, -1)), a)


def _sorted_columns(squares: Tensor) -> Solve:
    def solve(head: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, order = squares[head, columns].sort(descending=True, stable=True)
        moved = torch.eye(len(order), dtype=squares.dtype, device=squares.device)[order]
        return values, moved, moved

    return solve


def vo_svd(a: Attention, moments: Moments) -> ValueMaps:
    """Type III, MHA: minimises E |W_o,i (v_i - v^_i)|^2 over single tokens, per head.

    The two stages `svd(C^{1/2} W_v)`, `svd(S V^T W_o)` equal one SVD of `W_o G_v^{1/2}`: the same
    projection from `d_h x d_h` matrices.
    """
    return per_head_values(a, head_gram(a, "v", moments))


def vo_group(a: Attention, moments: Moments) -> ValueMaps:
    """Type III, GQA: project each shared value state on its principal directions, `T = V^T`,
    `W_o,i^ = W_o,i V`.

    The loss curve is the error of the output of single tokens, `|W_o,i V_j|^2 lambda_j` summed over
    the group. (The paper prints U where the shapes need V.)
    """
    energy, v = eigh_descending(head_gram(a, "v", moments))
    out = by_group(output_heads(a.o.weight.double(), a.n_q), a)
    out = out @ v.unsqueeze(1)  # [n_kv, group, d, d_h]
    loss = (out**2).sum((1, 2)) * energy
    return ValueMaps(pooled(loss.sqrt()), ov_cost(a), loss.sqrt(), v.mT, out.flatten(0, 1))


def mlp_nystrom(layer: Layer, moments: Moments) -> NystromOrder:
    """Type I: keep the neurons of largest ridge leverage `1 - lambda [(C + lambda I)^{-1}]_jj`, C
    summed over tokens, and refit `down`.

    The refit `W_down^ = W_down C[:, K] C[K, K]^{-1}` comes from one Cholesky factor for all ranks;
    the loss curve is exact (see NystromOrder).
    """
    gram = moments.second("mlp_hidden")
    order = leverage_complement(gram, RIDGE / moments.tokens).sort(stable=True).indices
    lower = reordered_cholesky(gram, order, DAMPING)
    product = times_lower(mlp_of(layer).down.weight.double()[:, order], lower)
    values, cost = product.norm(dim=0), mlp_cost(mlp_of(layer))
    return NystromOrder(values, cost, None, order, Lower.of(lower), product)


METHOD = Method(
    name="modegpt",
    paper="MoDeGPT: Modular Decomposition for Large Language Model Compression (Lin et al., "
    "ICLR 2025)",
    notes="QK: CR on post-rotary correlations, whole pairs with rotary. VO: two-stage SVD (MHA), "
    "principal directions of the value state (GQA). MLP: Nystrom on ridge leverage. Biases enter "
    "the moments. Rules for what the paper leaves open: GQA without rotary scores single columns "
    "by the same sum over the group as with rotary; columns that do not turn (partial rotary) are "
    "paired by their scores; the biases of kept columns and neurons are "
    "kept, and the output and down biases stay as they are; Propositions 1 to 3 bound the error "
    "(--bounds), for VO with GQA by the tail of the values.",
    factor=EachExpert(factor),
    components=COMPONENTS,
    needs=NEEDS,
    shrinks_kv=True,
    holds=COMPONENT_MATRICES,
    copies=2,
)
