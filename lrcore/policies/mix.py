"""A3-mix: the per-layer shares of a small search on the calibration loss."""

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from .policy import Policy, Targets


def mix(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """Every slot of a layer keeps the layer's share, evidence "search" (A3, appendix F: mixed
    ranks).

    Raises InputError where the search was not run; see lrcore/compression/evidence/search.py.
    """
    shares = evidence.get("search")
    return {slot: shares[slot[0]] for slot in evidence.spectra}


POLICY = Policy(
    "mix",
    "Shares of the layers by a small search on the calibration loss at this very budget (A3-mix).",
    mix,
    needs="search",
)
