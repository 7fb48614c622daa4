"""Equal marginal loss: the last rank of every slot saves the same loss per price. Water-filling is
a special case.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Cost, Spectrum
from .policy import Policy, Targets
from .probed import least_sum


def marginal(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Least sum of the slots' relative losses, `tail(rank) / tail(0)`, within the budget: one
    Lagrange multiplier, by bisection.

    The loss curves have different units; relative to the loss of a whole slot they can be compared,
    and no evaluation of the model is needed.
    """
    spectra = evidence.spectra
    return least_sum({slot: relative_losses(s) for slot, s in spectra.items()}, spectra, budget)


def relative_losses(s: Spectrum) -> Tensor:
    """`tail(rank) / tail(0)` at every rank of `s.cost.ranks()`, [ranks], float64, falling to 0 at
    full rank; zeros for an all-zero slot.
    """
    tails = s.losses_left
    left = tails[_steps(s.cost, s.grain)]
    return torch.from_numpy(left / tails[0] if tails[0] > 0 else np.zeros_like(left))


@lru_cache(maxsize=256)  # many layers, few kinds of slots
def _steps(cost: Cost, grain: int) -> np.ndarray:
    """The ranks of a slot, counted in its values, [ranks], int64."""
    return np.array(cost.ranks()) // grain


POLICY = Policy(
    "marginal",
    "The last rank of every slot saves the same relative loss per parameter.",
    marginal,
)
