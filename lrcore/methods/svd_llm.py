"""SVD-LLM: truncation-aware data whitening.

Each matrix on its own: minimises the error of its output on the calibration tokens,
`E |W x - W^ x|^2`. The paper whitens by the Cholesky factor of `S = E[x x^T]`; every root of S
gives the same optimum, and the projection form needs none (see `linalg.whitened_svd`). The paper's
second part, the weight update after truncation, is the sequential calibration here.
"""

from dataclasses import dataclass

from ..layer import Layer
from ..statistics import COMMON_TAPS, TAPS, Moments
from .experts import EachExpert
from .factors import LayerFactors
from .method import MATRICES, Method
from .svd import decomposed, factored, stored_option

NEEDS = frozenset((tap, "second") for tap in COMMON_TAPS)


@dataclass(frozen=True)
class SvdLlmOptions:
    stored: str = stored_option()


DEFAULT = SvdLlmOptions()


def factor(layer: Layer, moments: Moments, options: SvdLlmOptions = DEFAULT) -> LayerFactors:
    """Every matrix at every rank r with an error of `sum_{j>=r} sigma_j^2` in the metric S, sigma
    the singular values of `W S^{1/2}`.
    """
    products = decomposed(layer, lambda name: moments.second(TAPS[name]))
    return {
        name: factored(layer, name, *product, options.stored) for name, product in products.items()
    }


METHOD = Method(
    name="svd_llm",
    paper="SVD-LLM (Wang et al., ICLR 2025)",
    notes="Every matrix on its own, whitened by its input. Biases stay as they are; with "
    "calibration 'sequential' each layer is whitened by the outputs of the compressed layers "
    "before it. stored=pivots is PIFA's lossless form of the factors.",
    factor=EachExpert(factor),
    components=MATRICES,
    needs=NEEDS,
    shrinks_kv=False,
    options=SvdLlmOptions,
)
