"""Evidence "slopes": what the loss changes by, to first order, without one term of a slot."""

from torch import Tensor

from ...calibration.gradients import tokens_run, with_gradients
from ...methods.factors import FactoredMatrix
from ...models.load import LoadedModel
from ...progress import Progress
from ...recipe import Recipe
from ...spectra import Slot
from ...statistics import Moments
from ..factorise import Factorisation
from .kind import EvidenceKind

SLOPE = ("slope",)


def measure(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> dict[Slot, Tensor]:
    """{slot: changes in nats/token [terms]} of those slots that are one matrix as a sum of terms;
    the gradients are collected only where there are such slots.

    Raises InputError as `calibration.gradients.with_gradients` does.
    """
    found, slopes = None, dict[Slot, Tensor]()
    for layer, own in enumerate(factors.layers):
        terms = {name: one for name, one in own.items() if isinstance(one, FactoredMatrix)}
        if not terms:
            continue
        by = f"policy {recipe.policy}"
        found = found or with_gradients(model, factors.calibration, SLOPE, progress, by)
        gradients = found.joined(Moments({}, 0), layer).values
        for name, one in terms.items():
            slopes[layer, name] = one.without_each_term(gradients[name, "slope"]).cpu()
    return slopes


def tokens(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`. A method factors every layer alike."""
    summed = any(isinstance(one, FactoredMatrix) for one in factors.layers[0].values())
    return tokens_run(factors.calibration, SLOPE) if summed else 0.0


KIND = EvidenceKind(
    "slopes",
    "First-order change of the loss without each term of a factored matrix; one backward pass per "
    "calibration window (64 at most), kept on disk.",
    measure,
    tokens=tokens,
)
