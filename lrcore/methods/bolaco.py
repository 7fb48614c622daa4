"""Bolaco: Feature-based Low-Rank Compression of Large Language Models via Bayesian Optimization.

Each matrix separately, projected onto the principal components of its outputs: with Q_r the first r
eigenvectors of the covariance of `y = W x`, `W^ = Q_r (Q_r^T W)`, and the bias compensates the mean
of the outputs. Value projections are unchanged. The ratios are the policy `bolaco`.
"""

from ..layers.layer import Layer
from ..layers.statistics import TAPS, Moments
from ..system.settings import NO_OPTIONS, NoOptions
from .expert_factors import EachExpert
from .factors import LayerFactors, input_metric
from .latentllm.local import stacked
from .method import MATRICES, Method

JUNCTION = "right"  # no scale: `up` is Q_r and `down` is Q_r^T W
FACTORED = tuple(name for name in MATRICES if name != "v")
NEEDS = frozenset((TAPS[name], statistic) for name in FACTORED for statistic in ("second", "mean"))


def factor(layer: Layer, moments: Moments, options: NoOptions = NO_OPTIONS) -> LayerFactors:
    """Return `W^ = Q_r Q_r^T W` and `b^ = b + (I - Q_r Q_r^T) W E[x]` for all ranks r.

    Q: eigenvectors of the covariance of the outputs, `W C W^T`, C the covariance of the inputs [in,
    in]. So `y^ - E[y]` is the projection of `y - E[y]`. The squared values are the eigenvalues, and
    the error is their sum over j >= r.
    """
    return {
        name: stacked(
            layer,
            (name,),
            *input_metric(layer, name, moments),
            JUNCTION,
        )
        for name in layer.matrices()
        if name != "v"
    }


METHOD = Method(
    name="bolaco",
    paper="Feature-based Low-Rank Compression of Large Language Models via Bayesian Optimization "
    "(Ji et al., Findings of ACL 2024)",
    summary="Projects each matrix except v onto the principal components of its outputs.",
    notes="Each matrix except v separately, projected onto the principal components of its "
    "outputs. The lost mean moves into the bias; a projection without a bias gets one. The ratios "
    "of the paper are policy bolaco, its ranks multiples of 8 (multiple: 8).",
    factor=EachExpert(factor),
    components=FACTORED,
    needs=NEEDS,
    shrinks_kv=False,
    copies=4,
)
