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
        "power of the mean squared gradient that shares are proportional to; 0: uniform",
        low=0.0,
        high=2.0,
    )


def fisher(evidence: Evidence, budget: Budget, options: FisherOptions) -> Targets:
    """Every slot keeps a share proportional to `I^power`, I the mean squared gradient of its
    weights, evidence "gradients".

    Palu, section 3.3: the total rank is divided among the matrices in proportion to their Fisher
    information. Palu's keys and values all have one size, where the sum and the mean over weights
    give the same proportions. With slots of several sizes it is the mean here, or a slot would keep
    more for being large. No slot keeps more than its full rank: the excess is shared by the others,
    in proportion. All groups of heads in a matrix have one rank, as in Palu's released code. That
    code takes the root of every entry before the mean; power=0.5 comes nearest to it.

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
