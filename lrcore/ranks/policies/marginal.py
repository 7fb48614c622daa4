"""Equal marginal loss: the last rank of each slot saves the same loss per price.

`marginal` compares relative losses from the spectra, `probed` compares measured losses.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...layers.spectra import Cost, Spectrum
from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .multiplier import least_sum
from .policy import Policy, Targets


def marginal(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Minimize the sum of the slots' relative losses, `tail(rank) / tail(0)`, within the budget.

    The loss curves have different units. Relative to the loss at rank 0 they are comparable, and no
    evaluation of the model is needed. Water-filling is a special case.
    """
    spectra = evidence.spectra
    return least_sum({slot: relative_losses(s) for slot, s in spectra.items()}, spectra, budget)


def relative_losses(s: Spectrum) -> Tensor:
    """Return `tail(rank) / tail(0)` at each rank of `s.cost.ranks()`, [ranks], float64.

    It falls to 0 at full rank, and is zero for an all-zero slot.
    """
    tails = s.remaining_losses
    remaining = tails[_steps(s.cost, s.grain)]
    return torch.from_numpy(remaining / tails[0] if tails[0] > 0 else np.zeros_like(remaining))


@lru_cache(maxsize=256)  # layers share a few kinds of slots
def _steps(cost: Cost, grain: int) -> np.ndarray:
    """Return the ranks of a slot in units of its values, [ranks], int64."""
    return np.array(cost.ranks()) // grain


def probed(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Minimize the sum of the predicted increases in loss within the budget (ours).

    The increases are divergences from the dense model, evidence "probes". Raises InputError if the
    slots were not probed.
    """
    spectra, curves = evidence.spectra, evidence.get("probes").curves
    losses = {slot: curves[slot].at(s.cost.ranks()) for slot, s in spectra.items()}
    return least_sum(losses, spectra, budget)


MARGINAL = Policy(
    "marginal",
    "The last rank of each slot saves the same relative loss per parameter.",
    marginal,
)

PROBED = Policy(
    "probed",
    "Least predicted increase in loss, from a few measured probes per slot (ours).",
    probed,
    needs="probes",
    checked=True,
    forms=True,
)
