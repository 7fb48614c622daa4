"""Measured loss increase and lost energy of each slot, truncated alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lrcore.compression.solve.factorize import Factorization


@dataclass(frozen=True)
class ProbedSlot:
    """A slot truncated to `rank` (of `full`), while the other slots are dense.

    kept_share: share of its parameters. energy_lost: share of the squared singular values, in
    [0, 1]. increase: divergence from the predictions of the dense model, nats/token, with its
    standard error.
    """

    layer: int
    name: str
    rank: int
    full: int
    kept_share: float
    energy_lost: float
    increase: float
    error: float

    @property
    def hover_text(self) -> str:
        """Rank, loss increase and lost energy, one line each."""
        return (
            f"rank {self.rank} of {self.full} ({self.kept_share:.0%} of its parameters)"
            f"<br>+{self.increase:.3g} ± {self.error:.1g} nats/token"
            f"<br>energy lost {self.energy_lost:.2%}"
        )


def probed_slots(factors: Factorization, ratio: float) -> list[ProbedSlot]:
    """Return the probe of each slot whose share of parameters is nearest to 1 - ratio, by layer.

    Raises InputError if the factors have no probes.
    """
    points, slots = factors.evidence.get("probes").points, []
    for (layer, name), spectrum in sorted(factors.spectra.items(), key=lambda entry: entry[0][0]):
        cost, total = spectrum.cost, spectrum.tail(0)
        shares = [
            (cost.parameters(probe.rank) / cost.dense, probe) for probe in points[layer, name]
        ]
        if not shares:
            continue
        kept_share, probe = min(shares, key=lambda pair: abs(pair[0] - (1 - ratio)))
        lost = spectrum.tail(probe.rank) / total if total else 0.0
        increase, error = probe.increase, probe.standard_error
        slots.append(
            ProbedSlot(layer, name, probe.rank, cost.full, kept_share, lost, increase, error)
        )
    return slots


def agreement(slots: Sequence[ProbedSlot]) -> float | None:
    """Return Spearman's rank correlation of lost energy and loss increase, in [-1, 1].

    Returns None for fewer than three slots, and if either value is the same for all slots.
    """
    values = np.array([[slot.energy_lost, slot.increase] for slot in slots])
    if len(slots) < 3 or any(len({*column}) < 2 for column in values.T):
        return None
    ranks = values.argsort(0).argsort(0)
    correlations = np.asarray(np.corrcoef(ranks.T))  # [2, 2]
    return float(correlations[0, 1])
