"""Bolaco: Feature-based Low-Rank Compression of Large Language Models via Bayesian Optimization.

Each matrix on its own, projected onto the principal components of its outputs: with Q_r the first r
eigenvectors of the covariance of `y = W x`, `W^ = Q_r (Q_r^T W)`, and the bias takes what the mean
of the outputs loses. Values stay as they are. The ratios are the policy `bolaco`.
"""

from ..layer import Layer
from ..options import NO_OPTIONS, NoOptions
from ..statistics import TAPS, Moments
from .experts import EachExpert
from .factors import LayerFactors
from .latentllm.local import stacked
from .method import MATRICES, Method

JUNCTION = "right"  # no scale: `up` is Q_r and `down` is Q_r^T W
FACTORED = tuple(name for name in MATRICES if name != "v")
NEEDS = frozenset((TAPS[name], statistic) for name in FACTORED for statistic in ("second", "mean"))


def factor(layer: Layer, moments: Moments, options: NoOptions = NO_OPTIONS) -> LayerFactors:
    """`W^ = Q_r Q_r^T W` and `b^ = b + (I - Q_r Q_r^T) W E[x]` for all ranks r.

    Q: eigenvectors of the covariance of the outputs, `W C W^T`, C that of the inputs [in, in]. So
    `y^ - E[y]` is the projection of `y - E[y]`, and the squared values are the eigenvalues, whose
    sum over j >= r is the error.
    """
    return {
        name: stacked(
            layer,
            (name,),
            moments.centred(TAPS[name]),
            moments.mean(TAPS[name]),
            JUNCTION,
        )
        for name in layer.matrices()
        if name != "v"
    }


METHOD = Method(
    name="bolaco",
    paper="Feature-based Low-Rank Compression of Large Language Models via Bayesian Optimization "
    "(Ji et al., Findings of ACL 2024)",
    notes="Every matrix but the values on its own, projected onto the principal components of its "
    "outputs; what the mean loses goes into the bias, and a projection without one gets one. The "
    "paper's ratios are those of policy bolaco, its ranks multiples of 8 (multiple: 8).",
    factor=EachExpert(factor),
    components=FACTORED,
    needs=NEEDS,
    shrinks_kv=False,
    copies=4,
)
