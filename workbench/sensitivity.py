"""What each slot costs in loss when it alone is truncated, as it was probed, beside the energy that
its spectrum loses at the same rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import lrcore


@dataclass(frozen=True)
class ProbedSlot:
    """One slot alone at `rank`, of `full`, which keeps the share `kept` of its parameters.

    energy_lost: share of the squared singular values, in [0, 1]. increase: divergence from the
    dense model's predictions, nats/token, with its standard error.
    """

    layer: int
    name: str
    rank: int
    full: int
    kept: float
    energy_lost: float
    increase: float
    error: float

    @property
    def says(self) -> str:
        """In a line of its own each: what was kept, and what that costs."""
        return (
            f"rank {self.rank} of {self.full} ({self.kept:.0%} of its parameters)"
            f"<br>+{self.increase:.3g} ± {self.error:.1g} nats/token"
            f"<br>energy lost {self.energy_lost:.2%}"
        )


def probed_slots(factors: lrcore.Factorisation, ratio: float) -> list[ProbedSlot]:
    """Of every slot the probe whose share of the parameters is nearest to what a budget keeps; by
    layer. Raises InputError where the factors have no probes.
    """
    points, slots = factors.evidence.get("probes").points, []
    for (layer, name), spectrum in sorted(factors.spectra.items(), key=lambda one: one[0][0]):
        cost, total = spectrum.cost, spectrum.tail(0)
        shares = [(cost.parameters(one.rank) / cost.dense, one) for one in points[layer, name]]
        if not shares:
            continue
        kept, probe = min(shares, key=lambda pair: abs(pair[0] - (1 - ratio)))
        lost = spectrum.tail(probe.rank) / total if total else 0.0
        increase, error = probe.increase, probe.standard_error
        slots.append(ProbedSlot(layer, name, probe.rank, cost.full, kept, lost, increase, error))
    return slots


def agreement(slots: Sequence[ProbedSlot]) -> float | None:
    """Spearman's rank correlation of energy lost and increase in loss, in [-1, 1]; None where
    either is the same for all.
    """
    values = np.array([[one.energy_lost, one.increase] for one in slots])
    if len(slots) < 3 or any(len({*column}) < 2 for column in values.T):
        return None
    places = values.argsort(0).argsort(0)
    return float(np.corrcoef(places.T)[0, 1])
