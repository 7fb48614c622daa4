"""OWL (Yin et al., ICML 2024): layers with many outliers keep more."""

from dataclasses import dataclass

from ..budget import Budget
from ..evidence import Evidence
from ..options import option
from .policy import Policy, Targets


@dataclass(frozen=True)
class OwlOptions:
    """The defaults are the paper's M and lambda for Llama."""

    threshold: int = option(
        5, "M: an outlier is this many times the mean of its layer", low=1, high=20
    )
    spread: float = option(
        0.08,
        "lambda: largest difference of a layer's share from the requested one",
        low=0.0,
        high=0.5,
    )


def owl(evidence: Evidence, budget: Budget, options: OwlOptions) -> Targets:
    """All slots of layer l keep `keep + spread (D_l - D) / max |D_l - D|`, D_l the layer's outlier
    ratio, D the mean weighted by price.

    D_l is the share of entries of `|W_ij| |x_j|_2` above threshold times the layer's mean, evidence
    "outliers" (calibration/outliers.py). So shares lie in [keep - spread, keep + spread], grow
    linearly with D_l, and have the mean `keep`. The spread is lowered where a share would leave
    [0, 1]. Raises InputError where the outliers were not counted.
    """
    ratios, place = evidence.get("outliers"), options.threshold - 1
    dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in evidence.spectra.items()}
    mean = sum(dense[slot] * ratios[slot[0]][place] for slot in dense) / sum(dense.values())
    apart = {slot: ratios[slot[0]][place] - mean for slot in dense}
    widest = max(map(abs, apart.values()))
    spread = min(options.spread, budget.keep, 1 - budget.keep)
    return {
        slot: budget.keep + (spread * gap / widest if widest > 1e-15 else 0.0)
        for slot, gap in apart.items()
    }


POLICY = Policy(
    "owl",
    "Layers with many outliers among their input-weighted weights keep more (OWL).",
    owl,
    needs="outliers",
    options=OwlOptions,
)
