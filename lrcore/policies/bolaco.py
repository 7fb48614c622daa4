"""Bolaco's allocation (Ji et al., Findings of ACL 2024): one share for every type of matrix, found
by Bayesian optimisation.
"""

from ..budget import Budget
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot
from .policy import Policy, Targets
from .softmax import in_proportion


def bolaco(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """All slots of a type keep one share, in proportion to its weight, evidence "type_weights".

    No type keeps more than all of itself: the excess is shared by the others, in proportion.
    Raises InputError where the search was not run; see lrcore/compression/evidence/type_search.py.
    """
    spectra, weights = evidence.spectra, evidence.get("type_weights")
    prices = [float(budget.price(s.cost, s.cost.full)) for s in spectra.values()]
    own = [weights[slot_type(slot)] for slot in spectra]
    return dict(zip(spectra, in_proportion(own, budget.keep, 1.0, prices), strict=True))


def slot_type(slot: Slot) -> str:
    """The type of a slot: its component or matrix; queries and keys are one, as in the paper."""
    return "qk" if slot[1] in ("q", "k") else slot[1]


POLICY = Policy(
    "bolaco",
    "One share for every type of matrix, by Bayesian optimisation of the calibration loss at this "
    "very budget (Bolaco; needs optuna).",
    bolaco,
    needs="type_weights",
)
