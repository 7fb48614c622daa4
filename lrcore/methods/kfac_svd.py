"""KFAC-SVD: each matrix separately, in the metrics of its input and of its output.

The loss of a change dW of a matrix is about `tr(dW^T R dW C) / 2`, with the Kronecker factors of
the Fisher information (K-FAC): `C = E[x x^T]` of the input and `R = E[g g^T]` of the gradients with
respect to the output, token by token. Both factors are shrunk towards a multiple of the identity.

R is that of the paper's released code: gradients of the loss of the text, without the first and
last eighth of each window, with limited norms. `svd_llm` with outputs=curvature instead takes
gradients for next tokens that are sampled from the model.
"""

from dataclasses import dataclass

from torch import Tensor

from ..layers.layer import Layer
from ..layers.statistics import COMMON_TAPS, TAPS, TEXT_CURVATURE, Moments
from ..system.settings import option
from .care import shrunk
from .expert_factors import EachExpert
from .factors import LayerFactors
from .method import MATRICES, Method
from .svd import decomposed_on_both_sides, factored, stored_option


@dataclass(frozen=True)
class KfacSvdOptions:
    output_shrinkage: float = option(
        0.3,
        "alpha of (1 - alpha) R + alpha mean(diag R) I, R the curvature of the loss by the output.",
        low=0.0,
        high=1.0,
    )
    input_shrinkage: float = option(
        0.1,
        "alpha of (1 - alpha) C + alpha mean(diag C) I, C the second moment of the input.",
        low=0.0,
        high=1.0,
    )
    stored: str = stored_option()


DEFAULT = KfacSvdOptions()


def factor(layer: Layer, moments: Moments, options: KfacSvdOptions = DEFAULT) -> LayerFactors:
    """Return the factors of all matrices for all ranks.

    With R and C shrunk, `W^ = R^{-1/2} SVD_r(R^{1/2} W C^{1/2}) C^{-1/2}`. Half of the sum of the
    remaining squared singular values is the predicted increase of the loss in nats/token.
    """

    def outputs(name: str) -> Tensor:
        return shrunk(moments.values[name, TEXT_CURVATURE], options.output_shrinkage)

    def inputs(name: str) -> Tensor:
        return shrunk(moments.second(TAPS[name]), options.input_shrinkage)

    products = decomposed_on_both_sides(layer, outputs, inputs)
    return {
        name: factored(layer, name, *product, options.stored) for name, product in products.items()
    }


METHOD = Method(
    name="kfac_svd",
    paper="Advancing SVD-based LLM Compression via Layer-Wise Error Model Search (Thoma et al., "
    "ICML 2026)",
    summary="Truncates the SVD of each matrix, weighted by its inputs and the loss curvature.",
    notes="Each matrix separately, in the metric of its input and of the curvature of the loss by "
    "its output, from a backward pass per calibration window (at most 64). Biases are unchanged. "
    "The ranks of the paper are those of policy lems.",
    factor=EachExpert(factor),
    components=MATRICES,
    needs=frozenset((tap, "second") for tap in COMMON_TAPS).union(
        (name, TEXT_CURVATURE) for name in MATRICES
    ),
    shrinks_kv=False,
    options=KfacSvdOptions,
    copies=4,
    nests=True,
)
