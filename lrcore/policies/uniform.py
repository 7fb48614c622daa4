"""Every slot keeps the same share."""

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from .policy import Policy, Targets


def uniform(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Every slot keeps the same share of its price."""
    return dict.fromkeys(evidence.spectra, budget.keep)


POLICY = Policy("uniform", "Every layer and component keeps the same share.", uniform)
