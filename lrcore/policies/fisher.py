"""Palu's allocation (Chang et al., ICLR 2025): what the loss depends on most keeps most,
measured by Fisher information.
"""

from dataclasses import dataclass

from ..budget import Budget
from ..evidence import Evidence
from ..options import option
from .policy import Policy, Targets
from .softmax import in_proportion


@dataclass(frozen=True)
class FisherOptions:
    """The default is the paper's proportion."""

    power: float = option(
        1.0,
        "of the mean squared gradient that shares are proportional to; 0: even",
        low=0.0,
        high=2.0,
    )


def fisher(evidence: Evidence, budget: Budget, options: FisherOptions) -> Targets:
    """Every slot keeps a share proportional to `I^power`, I the mean squared gradient of its
    weights, evidence "gradients".

    Palu, section 3.3: the rank of each matrix is its Fisher information's part of the sum over all
    matrices, times the ranks there are. Its keys and values are all of one size, where information
    per weight and in sum say the same; with slots of several sizes, as every method but `care` has
    them, it is taken per weight, or a slot would keep more for being large. No slot keeps more than
    all of itself: the rest is shared by the others, in proportion. One share per slot: the groups
    of heads in a matrix have one rank, as in Palu's released code, which takes the root of every
    entry before the mean; power=0.5 comes nearest to that. 0 is even.
    Raises InputError where no gradients were collected.
    """
    spectra, information = evidence.spectra, evidence.get("gradients")
    prices = [float(budget.price(s.cost, s.cost.full)) for s in spectra.values()]
    weights = [information[slot] ** options.power for slot in spectra]
    shares = in_proportion(weights, budget.keep, 1.0, prices)
    return dict(zip(spectra, shares, strict=True))


POLICY = Policy(
    "fisher",
    "A slot keeps in proportion to the mean squared gradient of its weights (Palu).",
    fisher,
    needs="gradients",
    options=FisherOptions,
)
