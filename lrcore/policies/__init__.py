"""The policies, one file and one row each: how a budget is shared among the slots.

A policy sees loss curves and prices, never a model. It returns targets, the share of its price that each slot should keep;
`allocation.round_to_ranks` turns them into whole ranks that fit the budget. Milliseconds, so a slider may call it at every move.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..budget import Budget, Spectra
from ..errors import unknown
from ..spectra import Slot
from .greedy import greedy
from .probed import probed
from .softmax import softmax
from .uniform import uniform
from .waterfill import waterfill


@dataclass(frozen=True)
class Policy:
    """A row of the table. temperature: whether the policy reads one. probed: whether it needs probed slots."""

    name: str
    summary: str
    targets: Callable[[Spectra, Budget, float, list[float]], dict[Slot, float]]
    temperature: bool = False
    probed: bool = False

    def describe(self) -> dict:
        return {"name": self.name, "summary": self.summary, "temperature": self.temperature, "probed": self.probed}


POLICIES = {
    row.name: row
    for row in (
        Policy("uniform", "Every layer and component keeps the same share.", uniform),
        Policy("softmax", "Layers that change the residual stream least lose most (MoDeGPT eq. 11).", softmax, temperature=True),
        Policy("waterfill", "The largest singular values, pooled over all slots in the same unit, are kept (CARE-E).", waterfill),
        Policy("greedy", "The next rank goes where it removes most of what is still lost, early layers first (CARE's code).", greedy),
        Policy("probed", "Least predicted rise of the token loss, from a few measured probes per slot (ours).", probed, probed=True),
    )
}


def find_policy(name: str) -> Policy:
    """The row of a policy. Raises InputError with the nearest name for an unknown one."""
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    return POLICIES[name]
