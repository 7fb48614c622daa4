"""Rank allocation: a policy's targets become whole ranks that fit the budget.

Milliseconds: a slider calls it at every move.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .alternatives import by_part
from .budget import Budget, Prices, Spectra, rank_for, take_steps
from .errors import InputError, unknown
from .evidence import Evidence
from .policies import Policy
from .spectra import Cost, Slot, Spectrum


@dataclass(frozen=True)
class Constraints:
    """What a plan must satisfy besides its budget.

    fixed: ranks set by hand. ratios {component: share removed}: the slots of a named component
    share a budget of their own, and what they leave of the whole budget goes to the others.
    nearest: ranks are rounded to the nearest instead of down, and may exceed the budget. even: all
    layers have the same ranks, so that no policy has a choice.
    """

    fixed: Mapping[Slot, int] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    nearest: bool = False
    even: bool = False


UNCONSTRAINED = Constraints()
Kind = tuple[str, bool]  # a component, and whether it is all experts of a layer


def open_forms(spectra: Spectra, prices: Prices, constraints: Constraints, every: bool) -> Spectra:
    """The slots that a plan may use. A part of which a slot has a fixed rank or a ratio of its own
    takes the form of that slot. Else it takes any form that the budget counts; its first one unless
    `every`, or where the budget counts none.

    Raises InputError where slots of two forms of a part were chosen so.
    """
    left: dict[Slot, Spectrum] = {}
    for (layer, part), forms in by_part(spectra).items():
        named = {form: _chosen(own, constraints) for form, own in forms.items()}
        named = {form: how for form, how in named.items() if how}
        if len(named) > 1:
            one, other, *_ = (f"{how} ({form})" for form, how in named.items())
            raise InputError(
                f"The {part} of layer {layer} takes one form: {one} and {other} exclude each "
                "other. Take one of them back."
            )
        counted = {
            form for form, own in forms.items() if any(prices.counts(s.cost) for s in own.values())
        }
        kept = list(named) or [form for form in forms if form in counted] or list(forms)
        for form in kept if every and counted else kept[:1]:
            left |= forms[form]
    return left


def _chosen(own: Spectra, constraints: Constraints) -> str:
    """What chose a form whose slots are `own`, in words; "" where nothing did."""
    fixed = [f"the rank of {name}" for layer, name in own if (layer, name) in constraints.fixed]
    shared = [f"the ratio of {name}" for _, name in own if name in constraints.ratios]
    return next(iter(fixed + shared), "")


def round_to_ranks(
    spectra: Spectra, targets: Mapping[Slot, float], budget: Budget, nearest: bool = False
) -> dict[Slot, int]:
    """Whole ranks for the targets: rounded down, then one step at a time for the slot furthest
    below its target while the budget permits.

    The result never exceeds the budget, and no further step fits into it. With nearest, targets are
    only rounded, and the result may exceed the budget.
    """
    ranks = {slot: rank_for(s.cost, targets[slot], budget, nearest) for slot, s in spectra.items()}
    if nearest:
        return ranks
    _shrink(spectra, ranks, budget)
    left = budget.limit - sum(budget.price(s.cost, ranks[slot]) for slot, s in spectra.items())

    def following(slot: Slot) -> tuple[float, int] | None:
        cost = spectra[slot].cost
        rank = budget.next_rank(cost, ranks[slot])
        if rank is None:
            return None
        now, then, dense = (budget.price(cost, one) for one in (ranks[slot], rank, cost.full))
        return -(targets[slot] * dense - now) / (then - now), then - now

    def take(slot: Slot) -> None:
        rank = budget.next_rank(spectra[slot].cost, ranks[slot])
        assert rank is not None  # as `following` has seen
        ranks[slot] = rank

    take_steps(spectra, left, following, take)
    return ranks


def _shrink(spectra: Spectra, ranks: dict[Slot, int], budget: Budget) -> None:
    """Lower ranks while the plan exceeds its budget (because of least ranks or clipped targets),
    always that of the slot with the largest share of its full rank.
    """
    over = sum(budget.price(s.cost, ranks[slot]) for slot, s in spectra.items()) - budget.limit
    while over > 0:
        slot = max(
            (s for s in spectra if ranks[s] > budget.least(spectra[s].cost)),
            key=lambda s: ranks[s] / spectra[s].cost.full,
        )
        cost = spectra[slot].cost
        lower = ranks[slot] - cost.step if ranks[slot] < cost.full else budget.cap(cost)
        over -= budget.price(cost, ranks[slot]) - budget.price(cost, lower)
        ranks[slot] = lower


def plan_ranks(
    policy: Policy,
    options: Any,
    evidence: Evidence,
    budget: Budget,
    constraints: Constraints = UNCONSTRAINED,
) -> dict[Slot, int]:
    """Ranks of the slots of one form of every part: fixed ranks as given, full ranks where the
    budget does not count a slot, the rest by the policy.

    options: a value of `policy.options`.

    Raises InputError where fixed ranks or ratios leave too little for the other slots, for a
    component that the budget does not count, and where evidence that the policy needs was not
    measured.
    """
    spectra, fixed, ratios = evidence.spectra, constraints.fixed, constraints.ratios
    counted = {slot: s for slot, s in spectra.items() if budget.counts(s.cost)}
    ranks = {slot: s.cost.full for slot, s in spectra.items() if slot not in counted}
    ranks |= {slot: rank for slot, rank in fixed.items() if slot in spectra}

    def price(pool: Spectra) -> int:
        return sum(budget.price(s.cost, ranks[slot]) for slot, s in pool.items() if slot in ranks)

    def spend(pool: Spectra, limit: int) -> None:
        """Set the ranks of one pool of slots within its limit, which fixed ranks count towards."""
        free = {slot: s for slot, s in pool.items() if slot not in fixed}
        rest = _rest(free, limit - price({k: s for k, s in pool.items() if k in fixed}), budget)
        if free and constraints.even:
            ranks.update(even_ranks(free, rest))
        elif free:
            targets = policy.share(evidence.restricted(free), rest, options)
            chosen = {slot: s for slot, s in free.items() if slot in targets}
            ranks.update(round_to_ranks(chosen, targets, rest, constraints.nearest))

    pools = component_pools(counted, ratios, budget)
    for component, pool in pools.items():
        whole = budget.dense_of(pool)
        spend(pool, whole - math.ceil(ratios[component] * whole - 1e-9))
    others = {slot: s for slot, s in counted.items() if slot[1] not in ratios}
    if others:
        spend(others, budget.limit - sum(price(pool) for pool in pools.values()))
    if constraints.even:
        _check_even(ranks, spectra)
    return {slot: ranks[slot] for slot in spectra if slot in ranks}


def even_ranks(spectra: Spectra, budget: Budget) -> dict[Slot, int]:
    """One rank for all slots of a component, experts apart from MLPs that are none, by one share of
    the price for all components; then components take a step more in turn while the budget permits.

    Raises InputError where the layers have different sizes.
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

    def spent(ranks: Mapping[Kind, int]) -> int:
        return sum(counts[name] * budget.price(costs[name], rank) for name, rank in ranks.items())

    def at(share: float) -> dict[Kind, int]:
        return {name: rank_for(cost, share, budget, nearest=False) for name, cost in costs.items()}

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(at(middle)) <= budget.limit else (low, middle)
    ranks = at(low)
    for name, cost in costs.items():
        while (more := budget.next_rank(cost, ranks[name])) is not None:
            if spent(ranks | {name: more}) > budget.limit:
                break
            ranks[name] = more
    return {slot: ranks[kind] for slot, kind in kinds.items()}


def _kind(slot: Slot, spectrum: Spectrum) -> Kind:
    return slot[1], spectrum.cost.copies > 1


def _check_even(ranks: Mapping[Slot, int], spectra: Spectra) -> None:
    kinds = {slot: _kind(slot, spectra[slot]) for slot in ranks}
    for component, routed in set(kinds.values()):
        own = (component, routed)
        different = sorted({rank for slot, rank in ranks.items() if kinds[slot] == own})
        if len(different) > 1:
            raise InputError(
                f"The target needs the same rank of {component} in all layers; some are set by "
                f"hand, so that there are {different[0]} to {different[-1]}. Set all or none."
            )


def _rest(free: Spectra, limit: int, budget: Budget) -> Budget:
    """The budget of the slots whose ranks are free, of the same kind.

    Raises InputError where not even their least ranks fit.
    """
    dense = budget.dense_of(free)
    limit = min(limit, dense)
    if limit < budget.least_of(free):
        raise InputError(
            "The ranks set by hand and the ratios of single components leave too little for the "
            "other slots. Lower some of those ranks, raise those ratios, or lower the overall "
            "ratio."
        )
    return Budget(budget.kind, limit, dense)


def component_pools(
    counted: Spectra, ratios: Mapping[str, float], budget: Budget
) -> dict[str, Spectra]:
    """The counted slots of every component that has a ratio of its own.

    Raises InputError for an unknown component.
    """
    known = sorted({component for _, component in counted})
    for component in ratios:
        if component not in known:
            raise unknown(
                f"component of this method that the budget '{budget.kind}' counts", component, known
            )
    return {
        component: {slot: s for slot, s in counted.items() if slot[1] == component}
        for component in ratios
    }
