"""Rank allocation: integer ranks that follow a policy's targets and fit the budget.

It takes milliseconds, so a slider can call it on each move.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..layers.spectra import Cost, Slot, Spectrum, by_part
from ..system.errors import InputError, unknown
from .budget import Budget, Prices, Spectra, rank_for, take_steps
from .evidence import Evidence
from .policies import Policy, Targets


@dataclass(frozen=True)
class Constraints:
    """Constraints of a plan besides the budget.

    fixed: ranks set manually. ratios {component: share removed}: the slots of such a component have
    a separate budget, and the remainder of the overall budget goes to the other slots. nearest:
    ranks are rounded to the nearest instead of down, and may exceed the budget. even: all layers
    have the same ranks, so the policy has no choice.
    """

    fixed: Mapping[Slot, int] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    nearest: bool = False
    even: bool = False


UNCONSTRAINED = Constraints()
Kind = tuple[str, bool]  # (component, True for the experts of a layer)


def plan_ranks(
    policy: Policy,
    options: Any,
    evidence: Evidence,
    budget: Budget,
    constraints: Constraints = UNCONSTRAINED,
) -> dict[Slot, int]:
    """Return the ranks of the slots of one form of each part.

    Fixed ranks are unchanged, slots that the budget does not count have full rank, and the policy
    chooses the other ranks. options: a value of `policy.options`.

    Raises InputError if fixed ranks or ratios leave too little for the other slots, for a component
    that the budget does not count, and if evidence of the policy was not measured.
    """
    spectra, ratios = evidence.spectra, constraints.ratios
    counted = {slot: s for slot, s in spectra.items() if budget.counts(s.cost)}
    ranks = {slot: s.cost.full for slot, s in spectra.items() if slot not in counted}
    ranks |= {slot: rank for slot, rank in constraints.fixed.items() if slot in spectra}

    def share(free: Spectra, free_budget: Budget) -> Targets:
        return policy.share(evidence.restricted(free), free_budget, options)

    def allocate(pool: Spectra, limit: int) -> None:
        ranks.update(_pool_ranks(share, pool, limit, budget, constraints))

    remaining = budget.limit
    for component, pool in component_pools(counted, ratios, budget).items():
        dense = budget.dense_price(pool)
        allocate(pool, dense - math.ceil(ratios[component] * dense - 1e-9))
        remaining -= _price(pool, ranks, budget)
    if shared := {slot: s for slot, s in counted.items() if slot[1] not in ratios}:
        allocate(shared, remaining)
    if constraints.even:
        _check_even(ranks, spectra)
    return {slot: ranks[slot] for slot in spectra if slot in ranks}


def _pool_ranks(
    share: Callable[[Spectra, Budget], Targets],
    pool: Spectra,
    limit: int,
    budget: Budget,
    constraints: Constraints,
) -> dict[Slot, int]:
    """Return the ranks of the slots of a pool that are not fixed.

    share: the policy, called with the slots that are not fixed and their budget. limit: price of
    the pool, including the slots with fixed ranks.
    """
    fixed = {slot: s for slot, s in pool.items() if slot in constraints.fixed}
    free = {slot: s for slot, s in pool.items() if slot not in constraints.fixed}
    free_budget = _budget_of(free, limit - _price(fixed, constraints.fixed, budget), budget)
    if not free:
        return {}
    if constraints.even:
        return even_ranks(free, free_budget)
    targets = share(free, free_budget)
    chosen = {slot: s for slot, s in free.items() if slot in targets}
    return round_to_ranks(chosen, targets, free_budget, constraints.nearest)


def _budget_of(free: Spectra, limit: int, budget: Budget) -> Budget:
    """Return the budget of the free slots. Raises InputError if their smallest ranks do not fit."""
    dense = budget.dense_price(free)
    limit = min(limit, dense)
    if limit < budget.smallest_price(free):
        raise InputError(
            "The manual ranks and the ratios of single components leave too little for the "
            "other slots. Lower some of those ranks, raise those ratios, or lower the overall "
            "ratio."
        )
    return Budget(budget.kind, limit, dense)


def component_pools(
    counted: Spectra, ratios: Mapping[str, float], budget: Budget
) -> dict[str, Spectra]:
    """Return the counted slots of each component with a ratio.

    Raises InputError for an unknown component.
    """
    components = sorted({component for _, component in counted})
    for component in ratios:
        if component not in components:
            raise unknown(
                f"component of this method that the budget '{budget.kind}' counts",
                component,
                components,
            )
    return {
        component: {slot: s for slot, s in counted.items() if slot[1] == component}
        for component in ratios
    }


def round_to_ranks(
    spectra: Spectra, targets: Mapping[Slot, float], budget: Budget, nearest: bool = False
) -> dict[Slot, int]:
    """Return integer ranks for the targets.

    Targets are rounded down. Then the slot furthest below its target takes one step, as long as a
    step fits. The result never exceeds the budget, and no further step fits. With nearest, targets
    are only rounded, and the result may exceed the budget.
    """
    ranks = {slot: rank_for(s.cost, targets[slot], budget, nearest) for slot, s in spectra.items()}
    if nearest:
        return ranks
    _shrink(spectra, ranks, budget)

    def next_step(slot: Slot) -> tuple[float, int] | None:
        cost = spectra[slot].cost
        rank = budget.next_rank(cost, ranks[slot])
        if rank is None:
            return None
        price, next_price = budget.price(cost, ranks[slot]), budget.price(cost, rank)
        shortfall = targets[slot] * budget.price(cost, cost.full) - price
        return -shortfall / (next_price - price), next_price - price

    def advance(slot: Slot) -> None:
        rank = budget.next_rank(spectra[slot].cost, ranks[slot])
        assert rank is not None  # `next_step` returned a step
        ranks[slot] = rank

    take_steps(spectra, budget.limit - _price(spectra, ranks, budget), next_step, advance)
    return ranks


def _shrink(spectra: Spectra, ranks: dict[Slot, int], budget: Budget) -> None:
    """Lower ranks until the plan fits the budget.

    Ranks of rounded-down targets can exceed the budget because targets below a slot's smallest rank
    are raised to it, and because policies clip targets. The slot with the largest share of its full
    rank is lowered first.
    """
    excess = _price(spectra, ranks, budget) - budget.limit
    while excess > 0:
        slot = max(
            (s for s in spectra if ranks[s] > budget.smallest_rank(spectra[s].cost)),
            key=lambda s: ranks[s] / spectra[s].cost.full,
        )
        cost = spectra[slot].cost
        lower = ranks[slot] - cost.step if ranks[slot] < cost.full else budget.cap(cost)
        excess -= budget.price(cost, ranks[slot]) - budget.price(cost, lower)
        ranks[slot] = lower


def _price(spectra: Spectra, ranks: Mapping[Slot, int], budget: Prices) -> int:
    """Return the price of the slots that have ranks."""
    return sum(budget.price(s.cost, ranks[slot]) for slot, s in spectra.items() if slot in ranks)


def even_ranks(spectra: Spectra, budget: Budget) -> dict[Slot, int]:
    """Return a common rank for all slots of a component; MLPs and experts are separate components.

    Bisection finds the largest share of their dense prices that all components can have within the
    budget. Then each component in turn takes as many further steps as the budget permits.

    Raises InputError if the layers have different sizes.
    """
    kinds = {slot: _kind(slot, s) for slot, s in spectra.items()}
    costs: dict[Kind, Cost] = {}
    for (layer, component), s in spectra.items():
        if costs.setdefault(kinds[layer, component], s.cost) != s.cost:
            raise InputError(
                f"The layers of this model differ in size ({component} of layer {layer}), so they "
                "cannot have the same ranks, which the target needs. Choose another target."
            )
    counts = Counter(kinds.values())

    def total_price(ranks: Mapping[Kind, int]) -> int:
        return sum(counts[kind] * budget.price(costs[kind], rank) for kind, rank in ranks.items())

    def ranks_at(share: float) -> dict[Kind, int]:
        return {kind: rank_for(cost, share, budget, nearest=False) for kind, cost in costs.items()}

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if total_price(ranks_at(middle)) <= budget.limit:
            low = middle
        else:
            high = middle
    ranks = ranks_at(low)
    for kind, cost in costs.items():
        while (next_rank := budget.next_rank(cost, ranks[kind])) is not None:
            if total_price(ranks | {kind: next_rank}) > budget.limit:
                break
            ranks[kind] = next_rank
    return {slot: ranks[kind] for slot, kind in kinds.items()}


def _kind(slot: Slot, spectrum: Spectrum) -> Kind:
    return slot[1], spectrum.cost.copies > 1


def _check_even(ranks: Mapping[Slot, int], spectra: Spectra) -> None:
    """Raise InputError if the slots of a component have different ranks."""
    ranks_of_kind: dict[Kind, set[int]] = {}
    for slot, rank in ranks.items():
        ranks_of_kind.setdefault(_kind(slot, spectra[slot]), set()).add(rank)
    for (component, _), different in ranks_of_kind.items():
        if len(different) > 1:
            raise InputError(
                f"The target needs the same rank of {component} in all layers, but ranks set by "
                f"hand range from {min(different)} to {max(different)}. Set all of them or none."
            )


def available_forms(
    spectra: Spectra, prices: Prices, constraints: Constraints, all_forms: bool
) -> Spectra:
    """Return the slots that a plan may use.

    If a slot of a part has a fixed rank or a ratio, the part takes the form of that slot. Otherwise
    it may take any form that the budget counts if `all_forms` is true, else only the first of these
    forms. If the budget counts no form of the part, its first form is used.

    all_forms: True for policies that choose between forms.

    Raises InputError if slots of two forms of a part have fixed ranks or ratios.
    """
    available: dict[Slot, Spectrum] = {}
    for (layer, part), forms in by_part(spectra).items():
        reasons = {form: _constraint_on(slots, constraints) for form, slots in forms.items()}
        constrained = {form: reason for form, reason in reasons.items() if reason}
        if len(constrained) > 1:
            first, second, *_ = (f"{reason} ({form})" for form, reason in constrained.items())
            raise InputError(
                f"The {part} of layer {layer} takes one form: {first} and {second} exclude each "
                "other. Remove one of them."
            )
        counted = [
            form
            for form, slots in forms.items()
            if any(prices.counts(spectrum.cost) for spectrum in slots.values())
        ]
        candidates = list(constrained) or counted or list(forms)
        for form in candidates if all_forms and counted else candidates[:1]:
            available |= forms[form]
    return available


def _constraint_on(slots: Spectra, constraints: Constraints) -> str:
    """Return the first constraint on slots of a form, in words; "" if there is none."""
    fixed = [f"the rank of {name}" for layer, name in slots if (layer, name) in constraints.fixed]
    ratios = [f"the ratio of {name}" for _, name in slots if name in constraints.ratios]
    return next(iter(fixed + ratios), "")
