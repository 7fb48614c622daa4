"""Rank allocation: a policy's targets become whole ranks that fit the budget.

Milliseconds: a slider calls it at every move.
"""

import math
from collections.abc import Mapping
from typing import Any

from .budget import Budget, Influence, Spectra, rank_for, take_steps
from .errors import InputError, unknown
from .policies import find_policy
from .spectra import Slot


def round_to_ranks(
    spectra: Spectra, targets: Mapping[Slot, float], budget: Budget, nearest: bool = False
) -> dict[Slot, int]:
    """Whole ranks for the targets.

    Rounded down, then one more step at a time to the slot furthest below its target while the
    budget holds.

    The result never exceeds the budget and no further step fits into it. `nearest` only rounds: it
    may exceed the budget.
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
        ranks[slot] = budget.next_rank(spectra[slot].cost, ranks[slot])

    take_steps(spectra, left, following, take)
    return ranks


def _shrink(spectra: Spectra, ranks: dict[Slot, int], budget: Budget) -> None:
    """Take steps back where least ranks or clipped targets put the plan over its budget, from
    the slot furthest above least.
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
    policy: str,
    spectra: Spectra,
    budget: Budget,
    temperature: float,
    influence: Influence,
    fixed: Mapping[Slot, int] | None = None,
    nearest: bool = False,
    ratios: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[Slot, int]:
    """Ranks of all slots: those in `fixed` as given, those the budget does not count at full, the
    rest by the policy.

    ratios {component: share removed}: the slots of a named component share a budget of their own by
    the policy, and what they leave of the whole budget goes to the components that are not named.
    options: settings of the policy.
    Raises InputError where fixed ranks or ratios leave too little for the others, and for a
    component that the budget does not count.
    """
    row, fixed, ratios = find_policy(policy), fixed or {}, ratios or {}
    chosen = row.choose(options or {})
    ranks = {slot: s.cost.full for slot, s in spectra.items()} | dict(fixed)
    counted = {slot: s for slot, s in spectra.items() if budget.counts(s.cost)}

    def price(pool: Spectra) -> int:
        return sum(budget.price(s.cost, ranks[slot]) for slot, s in pool.items())

    def share(pool: Spectra, limit: int) -> None:
        """Ranks for one pool of slots within its limit; those set by hand stay and are paid for
        from it.
        """
        free = {slot: s for slot, s in pool.items() if slot not in fixed}
        dense = sum(budget.price(s.cost, s.cost.full) for s in free.values())
        limit = min(limit - price({slot: s for slot, s in pool.items() if slot in fixed}), dense)
        if limit < sum(budget.price(s.cost, budget.least(s.cost)) for s in free.values()):
            raise InputError(
                "The ranks set by hand and the ratios of single components leave too little for "
                "the other slots. "
                "Lower some of those ranks, raise those ratios, or lower the overall ratio."
            )
        if free:
            rest = Budget(budget.kind, limit, dense)
            ranks.update(
                round_to_ranks(
                    free, row.targets(free, rest, temperature, influence, **chosen), rest, nearest
                )
            )

    pools = component_pools(counted, ratios, budget)
    for component, pool in pools.items():
        whole = sum(budget.price(s.cost, s.cost.full) for s in pool.values())
        share(pool, whole - math.ceil(ratios[component] * whole - 1e-9))
    others = {slot: s for slot, s in counted.items() if slot[1] not in ratios}
    if others:
        share(others, budget.limit - sum(price(pool) for pool in pools.values()))
    return ranks


def component_pools(
    counted: Spectra, ratios: Mapping[str, float], budget: Budget
) -> dict[str, Spectra]:
    """The counted slots of every component that has a ratio of its own.

    Raises InputError for a name that is none.
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
