"""CLOVER: Cross-Layer Orthogonal Vectors Pruning and Fine-Tuning.

The singular vectors of what two matrices do together, head by head, by the weights alone:
`W_q,i^T W_k,i` where no rotary positions stand between, and `W_o,i W_v,i`. It is A3's problem with
the identity in the place of the moments of the layer's input. The MLP stays as it is.
"""

from ..layer import Layer
from ..options import NO_OPTIONS, NoOptions
from ..statistics import Moments
from .a3 import ov_joint, per_head_values, qk_joint, qk_svd
from .factors import LayerFactors
from .grams import head_gram, identity_input
from .method import COMPONENT_MATRICES, Method


def factor(layer: Layer, moments: Moments, options: NoOptions = NO_OPTIONS) -> LayerFactors:
    """QK and OV of one layer by their weights, for all ranks; no QK with rotary positions.

    `|W_q,i^T W_k,i - W^_q,i^T W^_k,i|_F^2` at rank r is `sum_{j>=r} s_j^2` of the product's
    singular values, likewise for `W_o,i W_v,i`; a bias counts as one more input column. With GQA
    the heads that share a key or value head share its vectors, and their errors are summed.
    """
    a = layer.attention
    blind, solved = identity_input(a), LayerFactors()
    if "qk" in layer.components and a.position != "rotary":
        solved["qk"] = qk_svd(a, blind) if a.group == 1 else qk_joint(a, blind)
    if "ov" in layer.components:
        values = head_gram(a, "v", blind)
        solved["ov"] = per_head_values(a, values) if a.group == 1 else ov_joint(a, blind)
    return solved


METHOD = Method(
    name="clover",
    paper="CLOVER: Cross-Layer Orthogonal Vectors Pruning and Fine-Tuning (Meng et al., ICML 2025)",
    notes="QK (no rotary) and OV per head by the weights alone, joint over a GQA group; no data is "
    "read. With rotary positions QK stays as it is, and so does the MLP: ratios are limited. The "
    "paper scales one side by the singular values; here both have their roots, the same product.",
    factor=factor,
    components=("qk", "ov"),
    needs=frozenset(),
    shrinks_kv=True,
    holds={name: COMPONENT_MATRICES[name] for name in ("qk", "ov")},
)
