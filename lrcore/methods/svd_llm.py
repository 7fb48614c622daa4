"""SVD-LLM: truncation-aware data whitening.

For each matrix separately, the error of its output on the calibration tokens, `E |W x - W^ x|^2`,
is minimized. The paper whitens by the Cholesky factor of `S = E[x x^T]`. Every root of S gives the
same optimum, and the projection form needs no root (see `linalg.whitened_svd`). The second part of
the paper, the weight update after truncation, corresponds to sequential calibration.

With outputs=curvature the error of the output y is measured in the curvature of the loss by y,
`E[dy^T R dy]`, so that directions of the output that the loss does not depend on are given up first
(K-FAC).
"""

from dataclasses import dataclass

from torch import Tensor

from ..layers.layer import Layer
from ..layers.linalg import damped
from ..layers.statistics import COMMON_TAPS, SAMPLED_CURVATURE, TAPS, Moments
from ..system.settings import option
from .expert_factors import EachExpert
from .factors import LayerFactors
from .method import MATRICES, Method
from .svd import decomposed, decomposed_on_both_sides, factored, stored_option

NEEDS = frozenset((tap, "second") for tap in COMMON_TAPS)


@dataclass(frozen=True)
class SvdLlmOptions:
    stored: str = stored_option()
    outputs: str = option(
        "none",
        "metric of the errors of outputs; curvature: the Fisher information of the outputs",
        choices=("none", "curvature"),
    )
    damping: float = option(
        0.3,
        "multiple of the identity that is added to the curvature, as a fraction of the mean of its "
        "diagonal; only with outputs=curvature",
        low=0.0,
        high=10.0,
    )


DEFAULT = SvdLlmOptions()


def factor(layer: Layer, moments: Moments, options: SvdLlmOptions = DEFAULT) -> LayerFactors:
    """Return the factors of all matrices for all ranks.

    The error at rank r in the metric S is `sum_{j>=r} sigma_j^2`, sigma the singular values of
    `W S^{1/2}`. With outputs=curvature they are those of `R^{1/2} W S^{1/2}`, and half of the sum
    is the predicted increase of the loss in nats/token, damping included.
    """

    def second(name: str) -> Tensor:
        return moments.second(TAPS[name])

    def curvature(name: str) -> Tensor:
        return damped(moments.values[name, SAMPLED_CURVATURE], options.damping)

    products = (
        decomposed(layer, second)
        if options.outputs == "none"
        else decomposed_on_both_sides(layer, curvature, second)
    )
    return {
        name: factored(layer, name, *product, options.stored) for name, product in products.items()
    }


METHOD = Method(
    name="svd_llm",
    paper="SVD-LLM (Wang et al., ICLR 2025)",
    summary="Truncates the SVD of each matrix, whitened by its inputs.",
    notes="Each matrix separately, whitened by its input. Biases are unchanged. With calibration "
    "'sequential' each layer is whitened by the outputs of the preceding compressed layers. "
    "stored=pivots is the lossless form of the factors of PIFA. outputs=curvature weights errors "
    "of outputs by the curvature of the loss, from a backward pass per calibration window (at most "
    "64).",
    factor=EachExpert(factor),
    components=MATRICES,
    needs=NEEDS,
    shrinks_kv=False,
    options=SvdLlmOptions,
    extra_needs={
        ("outputs", "curvature"): frozenset((name, SAMPLED_CURVATURE) for name in MATRICES)
    },
    nests=True,
)
