"""AA-SVD: Anchored and Adaptive SVD for Large Language Model Compression.

Each matrix separately, as in SVD-LLM, but with the output anchored to the dense model. With x the
input of the matrix in the dense model and x' its input in the compressed model, `E |W x - W^ x'|^2`
is minimized, so that a matrix compensates for the loss of the preceding matrices. With calibration
"independent", x' equals x and the method is `svd_llm`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.layer import Layer
from ..layers.linalg import EPS, cholesky, damped, whitened_svd
from ..layers.statistics import COMMON_TAPS, TAPS, Moments
from ..system.settings import option
from .factors import LayerFactors
from .method import MATRICES, Method
from .svd import factored, stored_option

NEEDS = frozenset((tap, statistic) for tap in COMMON_TAPS for statistic in ("second", "cross"))


@dataclass(frozen=True)
class AaSvdOptions:
    anchor: float = option(
        1.0,
        "fraction of the dense output W x in the target; the remaining fraction is W x' (1: "
        "AA-SVD; 0: SVD-LLM; 0.25: M of PIFA)",
        low=0.0,
        high=1.0,
    )
    ridge: float = option(
        0.01,
        "regularization towards W x', as a fraction of the mean squared input",
        low=1e-8,
        high=10.0,
    )
    stored: str = stored_option()


DEFAULT = AaSvdOptions()


def factor(layer: Layer, moments: Moments, options: AaSvdOptions = DEFAULT) -> LayerFactors:
    """Return the factors of the matrices with moments, for all ranks.

    Each is the best approximation of `anchored` in the metric `S' = E[x' x'^T]`. The error at rank
    r is `sum_{j>=r} sigma_j^2` plus the error of the full-rank optimum. With `S' = L L^T` the
    solution is the paper's `SVD_r(W E[x x'^T] L^{-T}) L^{-1}`.
    """
    solved: LayerFactors = {}
    for name, projection in layer.matrices().items():
        tap = TAPS[name]
        if (tap, "second") not in moments.values:
            continue
        second = moments.second(tap)
        difference = moments.cross(tap) - second
        target = anchored(projection.weight, difference, second, options)
        solved[name] = factored(layer, name, *whitened_svd(target, second), options.stored)
    return solved


def anchored(weight: Tensor, difference: Tensor, second: Tensor, options: AaSvdOptions) -> Tensor:
    """Return the matrix W* that minimizes `E |anchor W x + (1 - anchor) W x' - W* x'|^2`, [out,
    in], float64.

    weight [out, in]; difference `E[(x - x') x'^T]` and second `E[x' x'^T]` [in, in]. The solution
    is `W + anchor W E[(x - x') x'^T] S'^{-1}`, with the ridge on the diagonal of S'; the step from
    W is 0 if x' equals x.
    """
    weight = weight.double()
    lower = cholesky(damped(second, options.ridge), EPS)
    step: Tensor = torch.cholesky_solve((weight @ difference.double()).mT, lower).mT
    return weight + options.anchor * step


METHOD = Method(
    name="aa_svd",
    paper="AA-SVD: Anchored and Adaptive SVD for Large Language Model Compression (Sinha and "
    "Fleuret 2026)",
    summary="Fits the output of each compressed matrix to that of the dense model.",
    notes="Each matrix separately, with its output anchored to that of the dense model. Needs "
    "calibration 'sequential', without which it equals svd_llm. A layer is compressed part by "
    "part: q, k and v; o; gate and up; down. Biases are unchanged. anchor is the mixed target of "
    "PIFA. The paper then trains complete blocks; use heal for training.",
    factor=factor,
    components=MATRICES,
    needs=NEEDS,
    shrinks_kv=False,
    options=AaSvdOptions,
    copies=4,
    same_factors_as="svd_llm",
    nests=True,
)
