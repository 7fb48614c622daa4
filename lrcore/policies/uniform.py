"""Every slot keeps the same share."""

from ..budget import Budget, Influence, Spectra
from ..spectra import Slot


def uniform(
    spectra: Spectra, budget: Budget, temperature: float, influence: Influence
) -> dict[Slot, float]:
    """Every slot keeps the same share of its price."""
    return dict.fromkeys(spectra, budget.keep)
