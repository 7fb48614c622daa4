"""Evidence "gradients": the mean squared gradient of every slot's weights."""

from ...calibration.gradients import FISHER, fisher_information, tokens_run
from ...methods import find_method
from ...models.load import LoadedModel
from ...progress import Progress
from ...recipe import Recipe
from ...spectra import Slot
from ..factorise import Factorisation
from .kind import EvidenceKind


def measure(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> dict[Slot, float]:
    """See `calibration.gradients.fisher_information`, which says what it raises."""
    method = find_method(factors.method)
    matrices = {slot: method.matrices_of(slot[1]) for slot in factors.spectra}
    by = f"policy {recipe.policy}"
    return fisher_information(model, factors.calibration, matrices, progress, by)


KIND = EvidenceKind(
    "gradients",
    "Mean squared gradient of the weights of every slot; one backward pass per calibration window "
    "(64 at most), kept on disk.",
    measure,
    tokens=lambda factors, recipe: tokens_run(factors.calibration, FISHER),
)
