"""MoDeGPT: Modular Decomposition for Large Language Model Compression.

A matrix decomposition per type of module:

* Type I, MLP: Nystrom approximation on ridge leverage scores (Algorithm 1).
* Type II, QK: CR decomposition (Algorithm 2). With rotary, on post-rotary correlations and of
  complete rotary pairs: a selection of single columns does not commute with the rotation.
* Type III, VO: SVD on the value states (Algorithm 3, in two stages; here in an equivalent
  `d_h x d_h` form). GQA as in the paper's appendix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layers.layer import Attention, Layer, output_heads
from ..layers.linalg import (
    MIN_DAMPING,
    Lower,
    eigh_descending,
    leverage_complement,
    reordered_cholesky,
    sampling_damping,
    times_lower,
)
from ..layers.statistics import Moments
from ..system.settings import option
from .a3 import per_head_values
from .attention_factors import ColumnOrder, ValueMaps
from .attention_scores import Solve, column_order, sum_pairs, unrotated_directions, unrotated_pairs
from .costs import mlp_cost, ov_cost
from .expert_factors import EachExpert
from .factors import Factor, LayerFactors, NystromOrder, mlp_of, pooled
from .grams import by_group, head_gram
from .method import COMPONENT_MATRICES, COMPONENTS, Method
from .ranking import column_products

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


def shrinkage_option() -> Any:
    """Return the option `shrinkage` of methods with a refit on the remaining inputs."""
    return option(
        True,
        "the second moment behind a refit is shrunk by as much as its number of tokens requires; "
        "off: an undamped refit as in the papers, which fails where the tokens are about as many "
        "as the remaining inputs",
    )


@dataclass(frozen=True)
class ModegptOptions:
    shrinkage: bool = shrinkage_option()


DEFAULT = ModegptOptions()


def factor(layer: Layer, moments: Moments, options: ModegptOptions = DEFAULT) -> LayerFactors:
    """Return the factors of QK, OV and MLP of a layer, if present, for all ranks."""
    a = layer.attention
    vo = vo_svd if a.group == 1 else vo_group
    solve: dict[str, Callable[[], Factor]] = {
        "qk": lambda: qk_cr(a, moments),
        "ov": lambda: vo(a, moments),
        "mlp": lambda: mlp_nystrom(layer, moments, options.shrinkage),
    }
    return {name: solve[name]() for name in layer.components}


def qk_cr(a: Attention, moments: Moments) -> ColumnOrder:
    """Return the columns of Type II by the largest
    `|C_q^{1/2}[:, j]| |C_k^{1/2}[:, j]| = sqrt((C_q)_jj (C_k)_jj)`, over the heads of the group.

    The norm of a column of the root is the root of the diagonal entry, so no matrix root is
    computed. With rotary the score is summed over the pair; unrotated columns are paired by their
    scores, the best with the second best.
    """
    squares, unrotated, maps = column_losses(a, moments), unrotated_pairs(a), None
    if a.position != "rotary":
        return column_order(a, squares, squares.sqrt())
    if unrotated is not None:
        squares, maps = unrotated_directions(squares, unrotated, _sorted_columns(squares))
    return column_order(a, sum_pairs(squares), sum_pairs(squares.sqrt()), maps)


def column_losses(a: Attention, moments: Moments) -> Tensor:
    """Return `(C_q)_jj (C_k)_jj` after rotary, summed over the heads of the group: [n_kv, d_h]."""
    q = moments.square("q_rotated").unflatten(0, (a.n_q, -1))
    return column_products(q, moments.square("k_rotated").unflatten(0, (a.n_kv, -1)), a)


def _sorted_columns(squares: Tensor) -> Solve:
    def solve(head: int, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, order = squares[head, columns].sort(descending=True, stable=True)
        permutation = torch.eye(len(order), dtype=squares.dtype, device=squares.device)[order]
        return values, permutation, permutation

    return solve


def vo_svd(a: Attention, moments: Moments) -> ValueMaps:
    """Return the maps of Type III, MHA, which minimize E |W_o,i (v_i - v^_i)|^2 over single tokens,
    per head.

    The two stages `svd(C^{1/2} W_v)`, `svd(S V^T W_o)` equal a single SVD of `W_o G_v^{1/2}`: the
    same projection from `d_h x d_h` matrices.
    """
    return per_head_values(a, head_gram(a, "v", moments))


def vo_group(a: Attention, moments: Moments) -> ValueMaps:
    """Return the maps of Type III, GQA: each shared value state is projected onto its principal
    directions, `T = V^T`, `W_o,i^ = W_o,i V`.

    The loss curve is the error of the output of single tokens, `|W_o,i V_j|^2 lambda_j` summed over
    the group. (The paper prints U where the shapes need V.)
    """
    energy, v = eigh_descending(head_gram(a, "v", moments))
    out = by_group(output_heads(a.o.weight.double(), a.n_q), a)
    out = out @ v.unsqueeze(1)  # [n_kv, group, d, d_h]
    loss = (out**2).sum((1, 2)) * energy
    return ValueMaps(pooled(loss.sqrt()), ov_cost(a), loss.sqrt(), v.mT, out.flatten(0, 1))


def refit_damping(gram: Tensor, moments: Moments, shrinkage: bool) -> float:
    """Return the damping of a refit on inputs with the second moment `gram` [n, n], see
    `linalg.cholesky`.
    """
    return sampling_damping(gram, moments.tokens) if shrinkage else MIN_DAMPING


def mlp_nystrom(layer: Layer, moments: Moments, shrinkage: bool = True) -> NystromOrder:
    """Return the factor of Type I: the neurons with the largest ridge leverage
    `1 - lambda [(C + lambda I)^{-1}]_jj`, C summed over tokens, and the refit of `down`.

    The refit `W_down^ = W_down C[:, K] C[K, K]^{-1}` comes from a single Cholesky factor for all
    ranks; the loss curve is exact (see NystromOrder) for the damped moment.
    """
    gram = moments.second("mlp_hidden")
    damping = refit_damping(gram, moments, shrinkage)
    order = leverage_complement(gram, RIDGE / moments.tokens).sort(stable=True).indices
    lower = reordered_cholesky(gram, order, damping)
    product = times_lower(mlp_of(layer).down.weight.double()[:, order], lower)
    values, cost = product.norm(dim=0), mlp_cost(mlp_of(layer))
    return NystromOrder(values, cost, None, order, Lower.of(lower), product)


METHOD = Method(
    name="modegpt",
    paper="MoDeGPT: Modular Decomposition for Large Language Model Compression (Lin et al., "
    "ICLR 2025)",
    summary="Narrows attention heads and MLPs by three decompositions of pairs of matrices.",
    notes="QK: CR on post-rotary correlations, complete pairs with rotary. VO: two-stage SVD "
    "(MHA), principal directions of the value state (GQA). MLP: Nystrom on ridge leverage. Biases "
    "enter the moments. Additions to the paper: GQA without rotary scores single columns by the "
    "same sum over the group as with rotary; unrotated columns (partial rotary) are paired by "
    "their scores; selected columns and neurons retain their biases, and the output and down "
    "biases are unchanged; the refit of the MLP is damped by as much as the number of tokens "
    "requires (shrinkage); Propositions 1 to 3 bound the error (--bounds), for VO with GQA by the "
    "tail of the values.",
    factor=EachExpert(factor),
    components=COMPONENTS,
    needs=NEEDS,
    shrinks_kv=True,
    holds=COMPONENT_MATRICES,
    options=ModegptOptions,
    copies=2,
)
