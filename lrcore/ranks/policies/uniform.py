"""Uniform allocation: each slot keeps the same share."""

from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets


def uniform(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Keep the same share of the price of each slot."""
    return dict.fromkeys(evidence.spectra, budget.keep)


POLICY = Policy("uniform", "Each layer and component keeps the same share.", uniform)
