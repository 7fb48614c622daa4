"""Palu's allocation (Chang et al., ICLR 2025): what the loss depends on most keeps most,
measured by Fisher information.
"""

from ..budget import Budget, Influence, Spectra
from ..errors import InputError
from ..spectra import Slot
from .softmax import in_proportion

POWER = 1.0  # the paper's proportion


def fisher(
    spectra: Spectra, budget: Budget, temperature: float, influence: Influence, power: float = POWER
) -> dict[Slot, float]:
    """Every slot keeps a share proportional to `I^power`, I the mean squared gradient of its
    weights, `Spectrum.fisher`.

    Palu, section 3.3: the rank of each matrix is its Fisher information's part of the sum over all
    matrices, times the ranks there are. Its keys and values are all of one size, where information
    per weight and in sum say the same; with slots of several sizes, as every method but `care` has
    them, it is taken per weight, or a slot would keep more for being large. No slot keeps more than
    all of itself: the rest is shared by the others, in proportion. One share per slot: the groups
    of heads in a matrix have one rank, as in Palu's released code, which takes the root of every
    entry before the mean; power=0.5 comes nearest to that. 0 is even.
    Raises InputError where no gradients were collected.
    """
    if any(s.fisher is None for s in spectra.values()):
        raise InputError(
            "Policy 'fisher' needs gradients of the model: call lrcore.prepare or "
            "lrcore.measure_evidence, which collect them."
        )
    prices = [float(budget.price(s.cost, s.cost.full)) for s in spectra.values()]
    shares = in_proportion([s.fisher**power for s in spectra.values()], budget.keep, 1.0, prices)
    return dict(zip(spectra, shares, strict=True))
