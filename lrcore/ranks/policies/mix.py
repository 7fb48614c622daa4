"""A3-mix: a share per layer from a small search on the calibration loss."""

from ...system.settings import NoOptions
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets


def mix(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Keep the layer's share of each slot, evidence "search" (A3, appendix F: mixed ranks).

    Raises InputError if the search was not run; see lrcore/compression/evidence/search.py.
    """
    shares = evidence.get("search")
    return {slot: shares[slot[0]] for slot in evidence.spectra}


POLICY = Policy(
    "mix",
    "Shares of the layers by a small search on the calibration loss at the given budget (A3-mix).",
    mix,
    needs="search",
)
