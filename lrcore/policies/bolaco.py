"""Bolaco's allocation (Ji et al., Findings of ACL 2024): one share for every type of matrix, or for
every type in each of a few groups of layers, found by Bayesian optimisation.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..budget import Budget
from ..evidence import Evidence
from ..options import option
from ..spectra import Slot
from .policy import Policy, Targets
from .softmax import in_proportion


@dataclass(frozen=True)
class BolacoOptions:
    groups: int = option(
        1, "groups of neighbouring layers with shares of their own; 4 in the paper", low=1
    )


def bolaco(evidence: Evidence, budget: Budget, options: BolacoOptions) -> Targets:
    """All slots of a type keep one share, in proportion to its weight, evidence "type_weights".

    No type keeps more than all of itself: the excess is shared by the others, in proportion.
    Raises InputError where the search was not run; see lrcore/compression/evidence/type_search.py.
    """
    spectra, weights = evidence.spectra, evidence.get("type_weights")
    prices = [float(budget.price(s.cost, s.cost.full)) for s in spectra.values()]
    types = slot_types(spectra, options.groups)
    own = [weights[types[slot]] for slot in spectra]
    return dict(zip(spectra, in_proportion(own, budget.keep, 1.0, prices), strict=True))


def slot_types(slots: Iterable[Slot], groups: int) -> dict[Slot, str]:
    """The type of every slot: its component or matrix, queries and keys as one, as in the paper;
    where there is more than one group, with the number of that of its layer.
    """
    slots = list(slots)
    layers = sorted({layer for layer, _ in slots})
    place = {layer: number * groups // len(layers) for number, layer in enumerate(layers)}
    types = {slot: "qk" if slot[1] in ("q", "k") else slot[1] for slot in slots}
    if groups == 1:
        return types
    return {slot: f"{name}.{place[slot[0]]}" for slot, name in types.items()}


POLICY = Policy(
    "bolaco",
    "One share for every type of matrix, by Bayesian optimisation of the calibration loss at this "
    "very budget (Bolaco; needs optuna).",
    bolaco,
    needs="type_weights",
    options=BolacoOptions,
)
