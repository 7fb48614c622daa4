"""CLOVER: Cross-Layer Orthogonal Vectors Pruning and Fine-Tuning.

The singular vectors of the product of two matrices, head by head, from the weights only:
`W_q,i^T W_k,i` without rotary positions, and `W_o,i W_v,i`. This is the problem of A3 with the
identity in place of the moments of the layer's input. The MLP is unchanged.
"""

from ..layers.layer import Layer
from ..layers.statistics import Moments
from ..system.settings import NO_OPTIONS, NoOptions
from .a3 import ov_joint, per_head_values, qk_joint, qk_svd
from .factors import LayerFactors
from .grams import head_gram, identity_input
from .method import COMPONENT_MATRICES, Method


def factor(layer: Layer, moments: Moments, options: NoOptions = NO_OPTIONS) -> LayerFactors:
    """Return the factors of QK and OV of a layer from the weights, for all ranks; no QK with rotary
    positions.

    `|W_q,i^T W_k,i - W^_q,i^T W^_k,i|_F^2` at rank r is `sum_{j>=r} s_j^2` over the singular values
    of the product, likewise for `W_o,i W_v,i`; a bias counts as an additional input column. With
    GQA the heads that share a key or value head share its vectors, and their errors are summed.
    """
    a = layer.attention
    identity, solved = identity_input(a), LayerFactors()
    if "qk" in layer.components and a.position != "rotary":
        solved["qk"] = qk_svd(a, identity) if a.group == 1 else qk_joint(a, identity)
    if "ov" in layer.components:
        values = head_gram(a, "v", identity)
        solved["ov"] = per_head_values(a, values) if a.group == 1 else ov_joint(a, identity)
    return solved


METHOD = Method(
    name="clover",
    paper="CLOVER: Cross-Layer Orthogonal Vectors Pruning and Fine-Tuning (Meng et al., ICML 2025)",
    summary="Narrows attention heads by an SVD of products of weights, without calibration data.",
    notes="QK (no rotary) and OV per head from the weights only, joint over a GQA group; no data "
    "is read. The MLP, and QK with rotary positions, are unchanged, which limits the ratios. The "
    "paper scales one side by the singular values; here both sides are scaled by their roots, with "
    "the same product.",
    factor=factor,
    components=("qk", "ov"),
    needs=frozenset(),
    shrinks_kv=True,
    holds={name: COMPONENT_MATRICES[name] for name in ("qk", "ov")},
)
