"""A3-mix: the per-layer shares that a small search on the calibration loss found."""

from ..budget import Budget, Influence, Spectra
from ..errors import InputError
from ..spectra import Slot


def mix(
    spectra: Spectra, budget: Budget, temperature: float, influence: Influence
) -> dict[Slot, float]:
    """Every slot of a layer keeps the share that the search found for the layer, `Spectrum.share`
    (A3, appendix F: mixed ranks).

    Raises InputError where nothing was searched yet; see lrcore/compression/searching.py.
    """
    if any(s.share is None for s in spectra.values()):
        raise InputError(
            "Policy 'mix' needs a search on the model at this very budget: call lrcore.search "
            "first (some short evaluations)."
        )
    return {slot: s.share for slot, s in spectra.items()}
