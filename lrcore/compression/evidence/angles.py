"""Evidence "angles": by what angle every layer turns the residual stream (FLAT-LLM)."""

from ...calibration.calibrate import also, tokens_run
from ...models.load import LoadedModel
from ...progress import Progress
from ...recipe import Recipe
from ...statistics import BLOCK_ANGLE
from ..factorise import Factorisation
from .kind import EvidenceKind

NEEDS = frozenset({BLOCK_ANGLE})


def measure(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> list[float]:
    """The mean angle over the calibration tokens between the input and the output of every layer,
    as a share of a half-turn: [layers], in [0, 1]. One pass over the windows, kept on disk.
    """
    seen = also(model, factors.calibration, NEEDS, progress)
    assert seen.extra is not None  # something was asked for
    return [float(file.read(BLOCK_ANGLE)) for file in seen.files(seen.extra)]


KIND = EvidenceKind(
    "angles",
    "Angle by which every layer turns the residual stream; one pass over the calibration windows, "
    "kept on disk.",
    measure,
    tokens=lambda factors, recipe: tokens_run(factors.calibration, NEEDS),
)
