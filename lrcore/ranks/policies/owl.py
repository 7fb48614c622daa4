"""OWL (Yin et al., ICML 2024): layers with many outliers keep more."""

from dataclasses import dataclass

from ...system.settings import option
from ..budget import Budget
from ..evidence import Evidence
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
    """Keep `keep + spread (D_l - D) / max |D_l - D|` of all slots of layer l.

    D_l is the layer's outlier ratio, evidence "outliers" (calibration/outliers.py): the share of
    entries of `|W_ij| |x_j|_2` above threshold times the mean of the layer. D is the mean ratio
    weighted by price. So shares lie in [keep - spread, keep + spread], grow linearly with D_l, and
    have the mean `keep`. The spread is lowered if a share would leave [0, 1]. Raises InputError if
    the outliers were not counted.
    """
    ratios, threshold_index = evidence.get("outliers"), options.threshold - 1
    dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in evidence.spectra.items()}
    mean = sum(dense[slot] * ratios[slot[0]][threshold_index] for slot in dense) / sum(
        dense.values()
    )
    gaps = {slot: ratios[slot[0]][threshold_index] - mean for slot in dense}
    widest = max(map(abs, gaps.values()))
    spread = min(options.spread, budget.keep, 1 - budget.keep)
    return {
        slot: budget.keep + (spread * gap / widest if widest > 1e-15 else 0.0)
        for slot, gap in gaps.items()
    }


POLICY = Policy(
    "owl",
    "Layers with many outliers among their input-weighted weights keep more (OWL).",
    owl,
    needs="outliers",
    options=OwlOptions,
)
