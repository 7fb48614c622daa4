"""AA-SVD: Anchored and Adaptive SVD for Large Language Model Compression.

Each matrix on its own, as SVD-LLM, but its output is anchored to the dense model: with x the
matrix's input there and x' that in the compressed one, `E |W x - W^ x'|^2` is least, so that a
matrix makes up for what those before it lose. With calibration "independent" x' is x, and the
method is `svd_llm`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layer import Layer
from ..linalg import EPS, cholesky, damped, whitened_svd
from ..options import option
from ..statistics import COMMON_TAPS, TAPS, Moments
from .factors import LayerFactors
from .method import MATRICES, Method
from .svd import factored, stored_option

NEEDS = frozenset((tap, statistic) for tap in COMMON_TAPS for statistic in ("second", "cross"))


@dataclass(frozen=True)
class AaSvdOptions:
    anchor: float = option(
        1.0,
        "share of the dense model's output in the target W x; the rest is W x' (1: AA-SVD; 0: "
        "SVD-LLM; 0.25: PIFA's M)",
        low=0.0,
        high=1.0,
    )
    ridge: float = option(
        0.01,
        "share of the mean squared input by which W x is drawn to W x' where inputs are few",
        low=1e-8,
        high=10.0,
    )
    stored: str = stored_option()


DEFAULT = AaSvdOptions()


def factor(layer: Layer, moments: Moments, options: AaSvdOptions = DEFAULT) -> LayerFactors:
    """Every matrix at every rank r as the best approximation of `anchored` in the metric
    `S' = E[x' x'^T]`; those alone whose moments are given.

    Its error is what the values leave, `sum_{j>=r} sigma_j^2`, and what no W^ could make up for.
    With `S' = L L^T` it is the paper's `SVD_r(W E[x x'^T] L^{-T}) L^{-1}`.
    """
    solved: LayerFactors = {}
    for name, projection in layer.matrices().items():
        tap = TAPS[name]
        if (tap, "second") not in moments.values:
            continue
        second = moments.second(tap)
        apart = moments.cross(tap) - second
        target = anchored(projection.weight, apart, second, options)
        solved[name] = factored(layer, name, *whitened_svd(target, second), options.stored)
    return solved


def anchored(weight: Tensor, apart: Tensor, second: Tensor, options: AaSvdOptions) -> Tensor:
    """The matrix W* of least `E |anchor W x + (1 - anchor) W x' - W* x'|^2`, [out, in], float64.

    weight [out, in]; apart `E[(x - x') x'^T]` and second `E[x' x'^T]` [in, in]. It is
    `W + anchor W E[(x - x') x'^T] S'^{-1}`, with the ridge on the diagonal of S': the step from W
    is 0 where nothing is lost.
    """
    weight = weight.double()
    lower = cholesky(damped(second, options.ridge), EPS)
    step: Tensor = torch.cholesky_solve((weight @ apart.double()).mT, lower).mT
    return weight + options.anchor * step


METHOD = Method(
    name="aa_svd",
    paper="AA-SVD: Anchored and Adaptive SVD for Large Language Model Compression (Sinha and "
    "Fleuret 2026)",
    notes="Every matrix on its own, its output anchored to the dense model's; needs calibration "
    "'sequential', without which it is svd_llm. A layer is compressed part by part: q, k and v; o; "
    "gate and up; down. Biases stay as they are. anchor is PIFA's mixed target. The paper then "
    "trains whole blocks; here heal trains.",
    factor=factor,
    components=MATRICES,
    needs=NEEDS,
    shrinks_kv=False,
    options=AaSvdOptions,
    copies=4,
)
