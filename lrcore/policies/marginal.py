"""Equal marginal loss: the last rank of every slot saves the same loss per price. Water-filling is
a special case.
"""

import numpy as np
import torch
from torch import Tensor

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Spectrum
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
    tails, steps = s.losses_left, np.array(s.cost.ranks()) // s.grain
    left = tails[steps]
    return torch.from_numpy(left / tails[0] if tails[0] > 0 else np.zeros_like(left))


POLICY = Policy(
    "marginal",
    "The last rank of every slot saves the same relative loss per parameter.",
    marginal,
)
