"""OWL (Yin et al., ICML 2024): layers with many outliers keep more."""

from ..budget import Budget, Influence, Spectra
from ..errors import InputError
from ..spectra import Slot

THRESHOLD, SPREAD = 5, 0.08  # the paper's M and lambda for Llama


def owl(
    spectra: Spectra,
    budget: Budget,
    temperature: float,
    influence: Influence,
    threshold: int = THRESHOLD,
    spread: float = SPREAD,
) -> dict[Slot, float]:
    """All slots of layer l keep `keep + spread (D_l - D) / max |D_l - D|`, D_l the layer's outlier
    ratio, D the mean weighted by price.

    D_l is the share of entries of `|W_ij| |x_j|_2` above threshold times the layer's mean,
    influence "outliers" (calibration/outliers.py). So shares lie in [keep - spread, keep + spread],
    grow evenly with D_l, and have the mean asked for. The spread is lowered where a share would
    leave [0, 1]. Raises InputError where the outliers were not counted.
    """
    ratios = influence["outliers"]
    if not ratios:
        raise InputError(
            "Policy 'owl' needs the outlier ratios of the layers: factorise again "
            "(lrcore.factorise counts them)."
        )
    dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in spectra.items()}
    mean = sum(dense[slot] * ratios[slot[0]][threshold - 1] for slot in spectra) / sum(
        dense.values()
    )
    apart = {slot: ratios[slot[0]][threshold - 1] - mean for slot in spectra}
    widest, spread = max(map(abs, apart.values())), min(spread, budget.keep, 1 - budget.keep)
    return {
        slot: budget.keep + (spread * gap / widest if widest > 1e-15 else 0.0)
        for slot, gap in apart.items()
    }
