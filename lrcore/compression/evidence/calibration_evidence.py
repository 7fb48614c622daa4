"""Evidence from passes over the calibration windows: angles, gradients and slopes.

* angles: the angle by which each layer turns the residual stream (FLAT-LLM).
* gradients: the mean squared gradient of each slot's weights (Palu).
* slopes: the first-order change of the loss without a term of a factored matrix (Zero-Sum SVD).
"""

from torch import Tensor

from ...layers.spectra import Slot
from ...layers.statistics import BLOCK_ANGLE, Moments
from ...methods import find_method
from ...methods.factors import FactoredMatrix
from ...models.load import LoadedModel
from ...recipes.recipe import Recipe
from ...system.progress import Progress
from ..calibration.calibrate import add_statistics, statistics_tokens
from ..calibration.gradients import FISHER, fisher_information, gradient_tokens, with_gradients
from ..solve.factorize import Factorization
from .kind import EvidenceKind

ANGLE_NEEDS = frozenset({BLOCK_ANGLE})


def measure_angles(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> list[float]:
    """Return the mean angle between the input and the output of each layer, in half-turns.

    [layers], in [0, 1], the mean over the calibration tokens. A pass over the windows, cached on
    disk.
    """
    calibration = add_statistics(model, factors.calibration, ANGLE_NEEDS, progress)
    layers = range(calibration.layers)
    return [float(calibration.moments(layer).values[BLOCK_ANGLE]) for layer in layers]


ANGLES = EvidenceKind(
    "angles",
    "Angle by which every layer turns the residual stream; one pass over the calibration windows, "
    "cached on disk.",
    measure_angles,
    tokens=lambda factors, recipe: statistics_tokens(factors.calibration, ANGLE_NEEDS),
)


def measure_gradients(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> dict[Slot, float]:
    """Return the mean squared gradient of each slot.

    Raises InputError as `fisher_information` does.
    """
    method = find_method(factors.method)
    matrices = {slot: method.matrices_of(slot[1]) for slot in factors.spectra}
    reader = f"policy {recipe.policy}"
    return fisher_information(model, factors.calibration, matrices, progress, reader)


GRADIENTS = EvidenceKind(
    "gradients",
    "Mean squared gradient of the weights of every slot; one backward pass per calibration window "
    "(64 at most), cached on disk.",
    measure_gradients,
    tokens=lambda factors, recipe: gradient_tokens(factors.calibration, FISHER),
)


SLOPE = ("slope",)


def measure_slopes(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> dict[Slot, Tensor]:
    """Return the changes of the loss, in nats/token [terms], of slots that are a sum of terms.

    Gradients are collected only if there are such slots. Raises InputError as `with_gradients`
    does.
    """
    calibration, slopes = None, dict[Slot, Tensor]()
    reader = f"policy {recipe.policy}"
    for layer, layer_factors in enumerate(factors.layers):
        matrices = {
            name: factor
            for name, factor in layer_factors.items()
            if isinstance(factor, FactoredMatrix)
        }
        if not matrices:
            continue
        calibration = calibration or with_gradients(
            model, factors.calibration, SLOPE, progress, reader
        )
        gradients = calibration.with_gradient_statistics(Moments({}, 0), layer).values
        for name, factor in matrices.items():
            slopes[layer, name] = factor.first_order_changes(gradients[name, "slope"]).cpu()
    return slopes


def slope_tokens(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of slopes. A method factors each layer alike."""
    has_terms = any(isinstance(factor, FactoredMatrix) for factor in factors.layers[0].values())
    return gradient_tokens(factors.calibration, SLOPE) if has_terms else 0.0


SLOPES = EvidenceKind(
    "slopes",
    "First-order change of the loss without each term of a factored matrix; one backward pass per "
    "calibration window (64 at most), cached on disk.",
    measure_slopes,
    tokens=slope_tokens,
)
