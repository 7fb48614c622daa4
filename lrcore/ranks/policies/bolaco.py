"""Bolaco's allocation (Ji et al., Findings of ACL 2024): shares by Bayesian optimization.

There is one share per type of matrix, or per type and group of layers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...layers.spectra import Slot
from ...system.settings import option
from ..budget import Budget
from ..evidence import Evidence
from .policy import Policy, Targets
from .shares import in_proportion


@dataclass(frozen=True)
class BolacoOptions:
    groups: int = option(
        1, "groups of neighboring layers with separate shares; 4 in the paper", low=1
    )


def bolaco(evidence: Evidence, budget: Budget, options: BolacoOptions) -> Targets:
    """Keep the same share of all slots of a type, in proportion to the weight of the type.

    Evidence "type_weights". The share of a type is at most 1; the other types share the excess, in
    proportion. Raises InputError if the search was not run; see
    lrcore/compression/evidence/type_search.py.
    """
    spectra, weights = evidence.spectra, evidence.get("type_weights")
    prices = [float(budget.price(s.cost, s.cost.full)) for s in spectra.values()]
    types = slot_types(spectra, options.groups)
    slot_weights = [weights[types[slot]] for slot in spectra]
    return dict(zip(spectra, in_proportion(slot_weights, budget.keep, 1.0, prices), strict=True))


def slot_types(slots: Iterable[Slot], groups: int) -> dict[Slot, str]:
    """Return the type of each slot: its component or matrix.

    Queries and keys have a common type, as in the paper. With several groups of layers, the type
    ends in the number of the layer's group.
    """
    slots = list(slots)
    layers = sorted({layer for layer, _ in slots})
    group_of_layer = {layer: number * groups // len(layers) for number, layer in enumerate(layers)}
    types = {slot: "qk" if slot[1] in ("q", "k") else slot[1] for slot in slots}
    if groups == 1:
        return types
    return {slot: f"{name}.{group_of_layer[slot[0]]}" for slot, name in types.items()}


POLICY = Policy(
    "bolaco",
    "One share per type of matrix, by Bayesian optimization of the calibration loss at the given "
    "budget (Bolaco; needs optuna).",
    bolaco,
    needs="type_weights",
    options=BolacoOptions,
)
