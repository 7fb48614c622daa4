"""Plain SVD: each matrix on its own, best in the Frobenius norm of the weight (Eckart-Young),
without the data.

Option weights=fisher is FWSVD (Hsu et al., ICLR 2022): the error of every input is weighted by the
empirical Fisher information of its weights. The paper's layer is `X W` with W [in, out], so its
rows are the inputs; here, in `W x`, the columns are.
"""

from dataclasses import dataclass

from torch import Tensor

from ..layer import Layer
from ..linalg import balanced, whitened_svd
from ..options import option
from ..statistics import Moments
from .costs import matrix_cost
from .experts import EachExpert
from .factors import FactoredMatrix, LayerFactors
from .method import MATRICES, Method


@dataclass(frozen=True)
class SvdOptions:
    weights: str = option(
        "equal",
        "weight of every input's error: equal; fisher: its squared gradients (FWSVD)",
        choices=("equal", "fisher"),
    )


DEFAULT = SvdOptions()


def factor(layer: Layer, moments: Moments, options: SvdOptions = DEFAULT) -> LayerFactors:
    """`U S V^T = svd(W)` of every matrix; `|W - W^_r|_F^2 = sum_{j>=r} S_j^2`.

    weights=fisher: `svd(W D)`, `D = diag(f)^{1/2}`, f_j the sum over rows of the mean squared
    gradient; `W^ = U_r S_r V_r^T D^{-1}`, which is `U_r U_r^T W` and needs no inverse, minimises
    `|(W - W^) D|_F`. Where no gradient reaches a matrix, its inputs count equally.
    """
    solved: LayerFactors = {}
    for name, projection in layer.matrices().items():
        fisher = None if options.weights == "equal" else moments.values[name, "fisher"]
        metric = fisher.diag() if fisher is not None and bool(fisher.any()) else None
        solved[name] = factored(layer, name, *whitened_svd(projection.weight, metric))
    return solved


def factored(layer: Layer, name: str, up: Tensor, values: Tensor, down: Tensor) -> FactoredMatrix:
    """The factor of one matrix, `up @ down` with the scale shared evenly between both.

    up [out, k], values [k], down [k, in].
    """
    cost, (up, down) = matrix_cost(layer, name), balanced(up, down)
    return FactoredMatrix(values[: cost.full], cost, None, name, up, down)


METHOD = Method(
    name="svd",
    paper="Eckart and Young 1936",
    notes="Every matrix on its own, without the data. Biases stay as they are. weights=fisher is "
    "FWSVD: inputs weighted by the squared gradients of the loss, from one backward pass per "
    "calibration window (64 at most).",
    factor=EachExpert(factor, weighted=False),
    components=MATRICES,
    needs=frozenset(),
    shrinks_kv=False,
    options=SvdOptions,
    extra_needs={("weights", "fisher"): frozenset((name, "fisher") for name in MATRICES)},
)
