"""Palu's allocation (Chang et al., ICLR 2025): slots with large Fisher information keep more."""

from dataclasses import dataclass

from ...system.settings import option
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import in_proportion


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
    """Keep a share of each slot in proportion to `I^power`.

    I is the mean squared gradient of the slot's weights, evidence "gradients". Palu, section 3.3:
    the total rank is divided among the matrices in proportion to their Fisher information. All keys
    and values have the same size there, so sum and mean over weights give the same proportions.
    Here it is the mean, otherwise a slot would keep more for being large. The share of a slot is at
    most 1; the excess is shared by the other slots, in proportion. All groups of heads in a matrix
    have the same rank, as in Palu's released code. That code takes the root of each entry before
    the mean; power=0.5 is closest to it.

    Raises InputError if no gradients were collected.
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
