"""Equal marginal loss: the last rank of each slot saves the same loss per price.

`marginal` compares relative losses from the spectra, `probed` compares measured losses.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...layers.spectra import Cost, Spectrum
from ...system.settings import NoOptions, option
from ..budget import Budget, rank_for
from ..evidence import Evidence
from .multiplier import least_sum
from .policy import Policy, Targets
from .shares import CAP


@dataclass(frozen=True)
class MarginalOptions:
    cap: float = option(CAP, "largest share that a slot may lose", low=0.05, high=1.0)


def marginal(evidence: Evidence, budget: Budget, options: MarginalOptions) -> Targets:
    """Minimize the sum of the slots' relative losses, `tail(rank) / tail(0)`, within the budget.

    The loss curves have different units. Relative to the loss at rank 0 they are comparable, and no
    evaluation of the model is needed. Water-filling is a special case.

    No slot loses more than the share cap, or than the budget's share if that is larger: a slot with
    one dominant direction would otherwise be removed, whatever the model loses by it.
    """
    least_share = min(1 - options.cap, budget.keep)
    losses = {}
    for slot, s in evidence.spectra.items():
        losses[slot] = relative_losses(s)
        least = rank_for(s.cost, least_share, budget, nearest=False)
        losses[slot][: bisect_left(s.cost.ranks(), least)] = torch.inf
    return least_sum(losses, evidence.spectra, budget)


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
    options=MarginalOptions,
)

PROBED = Policy(
    "probed",
    "Least predicted increase in loss, from a few measured probes per slot (ours).",
    probed,
    needs="probes",
    checked=True,
    forms=True,
    distills=True,
)
