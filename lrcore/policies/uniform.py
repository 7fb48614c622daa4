"""Every slot keeps the same share."""

from ..budget import Budget, Spectra
from ..spectra import Slot


def uniform(spectra: Spectra, budget: Budget, temperature: float, influence: list[float]) -> dict[Slot, float]:
    """Every slot keeps the same share of its price."""
    return dict.fromkeys(spectra, budget.keep)
