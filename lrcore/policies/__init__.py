"""The policies, one file and one row each: how a budget is shared among the slots.

A policy sees loss curves and prices, never a model. It returns targets, the share of its price that
each slot should keep; `allocation.round_to_ranks` turns them into whole ranks that fit the budget.
Milliseconds, so a slider may call it at every move.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..budget import Budget, Influence, Spectra
from ..errors import unknown
from ..options import Option, read_options
from ..spectra import Slot
from .energy import energy
from .fisher import POWER, fisher
from .greedy import greedy
from .marginal import marginal
from .mix import mix
from .owl import SPREAD, THRESHOLD, owl
from .probed import probed
from .sensitivity import sensitivity
from .softmax import CAP, softmax, suggest
from .softmax_dual import softmax_dual
from .softmax_dual import suggest as suggest_dual
from .svd_llm_v2 import LEVEL, svd_llm_v2
from .uniform import uniform
from .waterfill import waterfill


@dataclass(frozen=True)
class Policy:
    """A row of the table.

    suggest: the rule of thumb for its temperature, None where it reads none. probed: whether it
    needs probed slots.

    searched: whether it needs a search at the very budget. gradients: whether it needs the squared
    gradients of the weights.
    options: what `targets` takes besides spectra, budget, temperature and influence, as keywords
    with the same defaults.
    """

    name: str
    summary: str
    targets: Callable[..., dict[Slot, float]]
    suggest: Callable[[Spectra, Budget, Influence], float] | None = None
    probed: bool = False
    searched: bool = False
    gradients: bool = False
    options: tuple[Option, ...] = ()

    def choose(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every option's value. Raises InputError for an unknown name or a value out of range."""
        return read_options(f"policy {self.name}", self.options, given)

    def describe(self) -> dict:
        options = [option.describe() for option in self.options]
        measured = {"probed": self.probed, "searched": self.searched, "gradients": self.gradients}
        reads = {"temperature": self.suggest is not None, **measured}
        return {"name": self.name, "summary": self.summary, **reads, "options": options}


CAPPED = (
    Option(
        "cap",
        CAP,
        "largest share that one layer may lose; the excess is shared by the others",
        low=0.05,
        high=1.0,
    ),
)
OUTLIERS = (
    Option(
        "threshold",
        THRESHOLD,
        "M: an outlier is this many times the mean of its layer",
        low=1,
        high=20,
    ),
    Option(
        "spread",
        SPREAD,
        "lambda: a layer's share differs from the asked one by this at most",
        low=0.0,
        high=0.5,
    ),
)
INFORMATION = (
    Option(
        "power",
        POWER,
        "of the mean squared gradient that shares are proportional to; 0: even",
        low=0.0,
        high=2.0,
    ),
)
LOSSES = (
    Option(
        "level",
        LEVEL,
        "logarithm that the smallest loss of a type counts as: small is uneven, large is even",
        low=0.1,
        high=100.0,
    ),
)


POLICIES = {
    row.name: row
    for row in (
        Policy("uniform", "Every layer and component keeps the same share.", uniform),
        Policy(
            "softmax",
            "Layers that change the residual stream least lose most (MoDeGPT eq. 11).",
            softmax,
            suggest,
            options=CAPPED,
        ),
        Policy(
            "softmax_dual",
            "The same with separate scores for attention and MLP (MoDeGPT eq. 42-43).",
            softmax_dual,
            suggest_dual,
            options=CAPPED,
        ),
        Policy(
            "waterfill",
            "The largest singular values, pooled over all slots in the same unit, are kept "
            "(CARE-E).",
            waterfill,
        ),
        Policy(
            "greedy",
            "The next rank goes where it removes most of what is still lost, early layers first "
            "(CARE's code).",
            greedy,
        ),
        Policy("energy", "Every slot keeps the same share of its energy.", energy),
        Policy(
            "marginal",
            "The last rank of every slot is worth the same relative loss per parameter.",
            marginal,
        ),
        Policy(
            "mix",
            "Shares of the layers by a small search on the calibration loss at this very budget "
            "(A3-mix).",
            mix,
            searched=True,
        ),
        Policy(
            "owl",
            "Layers with many outliers among their weighed weights keep more (OWL).",
            owl,
            options=OUTLIERS,
        ),
        Policy(
            "svd_llm_v2",
            "Per type of matrix, layers lose in proportion to 1 / log of their loss at the "
            "uniform share (SVD-LLM v2).",
            svd_llm_v2,
            options=(*LOSSES, *CAPPED),
        ),
        Policy(
            "fisher",
            "A slot keeps in proportion to the mean squared gradient of its weights (Palu).",
            fisher,
            gradients=True,
            options=INFORMATION,
        ),
        Policy(
            "sensitivity",
            "One threshold on the measured rise of the loss by each slot alone (ASVD's search).",
            sensitivity,
            probed=True,
        ),
        Policy(
            "probed",
            "Least predicted rise of the token loss, from a few measured probes per slot (ours).",
            probed,
            probed=True,
        ),
    )
}


def find_policy(name: str) -> Policy:
    """The row of a policy. Raises InputError with the nearest name for an unknown one."""
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES)
    return POLICIES[name]
