"""COMPOT: each matrix as a dictionary and sparse codes.

The alternation is in `lrcore/methods/codes.py`. With dictionary=least_squares, the dictionary
`D^T L^{-1}` is replaced by `(C^T C)^{-1} C^T W` after the last step, the optimum for these codes
without orthonormal columns. With rounds=0 this is the single step of ROCKET (Ali et al. 2026), with
codes selected by their loss.
"""

from dataclasses import dataclass

from ..layers.layer import Layer
from ..layers.statistics import COMMON_TAPS, TAPS, Moments
from ..system.settings import option
from ..system.threads import at_once
from .codes import CodedMatrices, Coding, coded_matrices
from .expert_factors import EachExpert
from .factors import LayerFactors
from .method import MATRICES, Method


@dataclass(frozen=True)
class CompotOptions:
    atoms: int = option(
        2,
        "atoms of the dictionary per nonzero number of a row (k / s)",
        low=2,
        high=8,
    )
    rounds: int = option(
        20,
        "updates of dictionary and codes after the first codes",
        low=0,
        high=1000,
    )
    dictionary: str = option(
        "orthogonal",
        "orthogonal: orthonormal atoms; least_squares: fitted to the last codes",
        choices=("orthogonal", "least_squares"),
    )


DEFAULT = CompotOptions()


def factor(layer: Layer, moments: Moments, options: CompotOptions = DEFAULT) -> LayerFactors:
    """Return the factors of all matrices, see `codes.coded_matrices`."""
    coding = Coding(options.atoms, options.rounds, options.dictionary == "orthogonal")

    def solve(name: str) -> CodedMatrices:
        return coded_matrices(layer, (name,), moments.second(TAPS[name]), None, coding)

    weights = {name: matrix.weight for name, matrix in layer.matrices().items()}
    return dict(at_once(solve, weights))


METHOD = Method(
    name="compot",
    paper="COMPOT: Calibration-Optimized Matrix Procrustes Orthogonalization for Transformers "
    "Compression (Makhov et al. 2026)",
    summary="Replaces each matrix by a dictionary and sparse codes, fitted to its inputs.",
    notes="Each matrix separately, whitened by its input: a dictionary of orthonormal atoms, and "
    "codes with as many nonzero numbers in each row as the rank. The positions of the codes are "
    "stored as bits, and sixteen bits count as a number. The product uses the dense codes, which "
    "exist during the product only. Biases are unchanged. dictionary=least_squares with rounds=0 "
    "is the single step of ROCKET.",
    factor=EachExpert(factor),
    components=MATRICES,
    needs=frozenset((tap, "second") for tap in COMMON_TAPS),
    shrinks_kv=False,
    options=CompotOptions,
)
