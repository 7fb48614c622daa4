"""Equal marginal loss: the last rank of every slot saves the same loss per price. Water-filling is
a special case.
"""

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
    squares = s.values.double() ** 2
    tails = torch.cat((squares.flip(0).cumsum(0).flip(0), squares.new_zeros(1)))
    steps = torch.tensor(s.cost.ranks()) // s.grain
    if float(tails[0]) > 0:
        return tails[steps] / tails[0]
    return torch.zeros(len(steps), dtype=torch.float64)


POLICY = Policy(
    "marginal",
    "The last rank of every slot saves the same relative loss per parameter.",
    marginal,
)
