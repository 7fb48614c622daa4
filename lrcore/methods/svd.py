"""Plain SVD: each matrix separately, optimal in the Frobenius norm of the weight (Eckart-Young),
without data.

Option weights=fisher is FWSVD (Hsu et al., ICLR 2022): the error of each input is weighted by the
empirical Fisher information of its weights. In the paper's layer `X W`, W [in, out], the rows are
the inputs; in `W x` the columns are.

Option stored=pivots, also of `svd_llm` and `aa_svd`, stores a product as in PIFA (Zhao et al., ICML
2025): r of its rows unchanged and the remaining rows as combinations of these. The matrix is the
same, in `r (d + d') - r^2` numbers instead of `r (d + d')`, so the rank is higher at the same size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..layers.layer import Layer
from ..layers.linalg import balanced, two_sided_svd, whitened_svd
from ..layers.statistics import Moments
from ..system.settings import option
from ..system.threads import at_once
from .costs import matrix_cost
from .expert_factors import EachExpert
from .factors import FactoredMatrix, LayerFactors
from .latentllm.junction import nested
from .latentllm.local import StackedMatrices, stacked_cost
from .method import MATRICES, Method

PIVOTS = "pivots"


def stored_option() -> Any:
    """Return the option `stored` of methods that factorize each matrix separately."""
    return option(
        "pairs",
        "pairs: two factors; pivots: r rows of their product, and the remaining rows as "
        "combinations of these (PIFA), the same matrix in fewer numbers",
        choices=("pairs", PIVOTS),
    )


@dataclass(frozen=True)
class SvdOptions:
    weights: str = option(
        "equal",
        "weights of the errors of inputs; fisher: squared gradients (FWSVD)",
        choices=("equal", "fisher"),
    )
    stored: str = stored_option()


DEFAULT = SvdOptions()


def factor(layer: Layer, moments: Moments, options: SvdOptions = DEFAULT) -> LayerFactors:
    """Return the factors of all matrices by `U S V^T = svd(W)`;
    `|W - W^_r|_F^2 = sum_{j>=r} S_j^2`.

    weights=fisher: `svd(W D)`, `D = diag(f)^{1/2}`, f_j the sum over rows of the mean squared
    gradient. `W^ = U_r S_r V_r^T D^{-1}` minimizes `|(W - W^) D|_F`; it equals `U_r U_r^T W`, which
    needs no inverse. If no gradient reaches a matrix, its inputs have equal weights.
    """

    def metric(name: str) -> Tensor | None:
        fisher = None if options.weights == "equal" else moments.values[name, "fisher"]
        return fisher.diag() if fisher is not None and bool(fisher.any()) else None

    return {
        name: factored(layer, name, *product, options.stored)
        for name, product in decomposed(layer, metric).items()
    }


def decomposed_on_both_sides(
    layer: Layer, outputs: Callable[[str], Tensor], inputs: Callable[[str], Tensor]
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return `two_sided_svd` of all matrices of a layer: up [out, k], values [k] and down [k, in].

    outputs(name), inputs(name): the metrics of the output [out, out] and of the input [in, in].
    """
    weights = {name: p.weight for name, p in layer.matrices().items()}
    return at_once(lambda name: two_sided_svd(weights[name], outputs(name), inputs(name)), weights)


def decomposed(
    layer: Layer, metric: Callable[[str], Tensor | None]
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return `whitened_svd` of all matrices of a layer: up [out, k], values [k] and down [k, in].

    metric(name): the metric of the input of the matrix, [in, in]; None for the identity.
    """
    weights = {name: p.weight for name, p in layer.matrices().items()}
    return at_once(lambda name: whitened_svd(weights[name], metric(name)), weights)


def factored(
    layer: Layer, name: str, up: Tensor, values: Tensor, down: Tensor, stored: str = "pairs"
) -> FactoredMatrix | StackedMatrices:
    """Return the factor of a matrix `up @ down`.

    As pairs, the scale is split evenly between the two factors. As pivots,
    `up @ down = P [I; C] W_p` with r rows `W_p` of the product, at every rank r. up [out, k],
    values [k], down [k, in].
    """
    if stored == PIVOTS:
        side = "left_identity"
        cost = stacked_cost(layer, (name,), side, add_bias=False)
        product = nested(up.unsqueeze(0), down.unsqueeze(0), values.unsqueeze(0), side)
        return StackedMatrices(values[: cost.full], cost, None, (name,), product, None)
    cost, (up, down) = matrix_cost(layer, name), balanced(up, down)
    return FactoredMatrix(values[: cost.full], cost, None, name, up, down)


METHOD = Method(
    name="svd",
    paper="Eckart and Young 1936",
    summary="Truncates the SVD of each matrix, without calibration data.",
    notes="Each matrix separately, without data. Biases are unchanged. weights=fisher is FWSVD: "
    "inputs are weighted by the squared gradients of the loss, from a backward pass per "
    "calibration window (at most 64).",
    factor=EachExpert(factor, weighted=False),
    components=MATRICES,
    needs=frozenset(),
    shrinks_kv=False,
    options=SvdOptions,
    extra_needs={("weights", "fisher"): frozenset((name, "fisher") for name in MATRICES)},
    nests=True,
)
