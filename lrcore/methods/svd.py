"""Plain SVD: each matrix on its own, best in the Frobenius norm of the weight (Eckart-Young),
without the data.

Option weights=fisher is FWSVD (Hsu et al., ICLR 2022): the error of every input is weighted by the
empirical Fisher information of its weights. The paper's layer is `X W` with W [in, out], so its
rows are the inputs; here, in `W x`, the columns are.

Option stored=pivots, which `svd_llm` and `aa_svd` have too, stores a product as PIFA does (Zhao et
al., ICML 2025): r of its rows as they are, and the others as combinations of these. It is the same
matrix in `r (d + d') - r^2` numbers in the place of `r (d + d')`, so that at the same size it has a
higher rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..layer import Layer
from ..linalg import balanced, whitened_svd
from ..options import option
from ..parallel import at_once
from ..statistics import Moments
from .costs import matrix_cost
from .experts import EachExpert
from .factors import FactoredMatrix, LayerFactors
from .latentllm.junction import nested
from .latentllm.local import StackedMatrices, stacked_cost
from .method import MATRICES, Method

PIVOTS = "pivots"


def stored_option() -> Any:
    """The option of methods that factor each matrix on its own."""
    return option(
        "pairs",
        "pairs: two factors; pivots: some rows of their product, and the others as combinations of "
        "these (PIFA): the same matrix in fewer numbers",
        choices=("pairs", PIVOTS),
    )


@dataclass(frozen=True)
class SvdOptions:
    weights: str = option(
        "equal",
        "weight of every input's error: equal; fisher: its squared gradients (FWSVD)",
        choices=("equal", "fisher"),
    )
    stored: str = stored_option()


DEFAULT = SvdOptions()


def factor(layer: Layer, moments: Moments, options: SvdOptions = DEFAULT) -> LayerFactors:
    """`U S V^T = svd(W)` of every matrix; `|W - W^_r|_F^2 = sum_{j>=r} S_j^2`.

    weights=fisher: `svd(W D)`, `D = diag(f)^{1/2}`, f_j the sum over rows of the mean squared
    gradient; `W^ = U_r S_r V_r^T D^{-1}`, which is `U_r U_r^T W` and needs no inverse, minimises
    `|(W - W^) D|_F`. Where no gradient reaches a matrix, its inputs count equally.
    """

    def metric(name: str) -> Tensor | None:
        fisher = None if options.weights == "equal" else moments.values[name, "fisher"]
        return fisher.diag() if fisher is not None and bool(fisher.any()) else None

    return {
        name: factored(layer, name, *product, options.stored)
        for name, product in decomposed(layer, metric).items()
    }


def decomposed(
    layer: Layer, metric: Callable[[str], Tensor | None]
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """`whitened_svd` of every matrix of a layer: up [out, k], values [k] and down [k, in].

    metric(name): of the matrix's input, [in, in]; None for the identity.
    """
    weights = {name: p.weight for name, p in layer.matrices().items()}
    return at_once(lambda name: whitened_svd(weights[name], metric(name)), weights)


def factored(
    layer: Layer, name: str, up: Tensor, values: Tensor, down: Tensor, stored: str = "pairs"
) -> FactoredMatrix | StackedMatrices:
    """The factor of one matrix, `up @ down`: as pairs, with the scale shared evenly between both;
    or as pivots, `up @ down = P [I; C] W_p` with r rows `W_p` of the product, at every rank r.

    up [out, k], values [k], down [k, in].
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
