"""CARE's allocation: the largest singular values are kept, wherever they are."""

import torch

from ..budget import Budget, Spectra, take_steps
from ..evidence import Evidence
from ..options import NoOptions
from ..spectra import Slot, Spectrum
from .policy import Policy, Targets


def waterfill(evidence: Evidence, budget: Budget, options: NoOptions) -> Targets:
    """CARE eq. 2: pool the singular values of all slots with the same unit, and keep the largest
    that fit the budget.

    CARE's keys and values have one unit (`Spectrum.unit`), so `W_K C` and `W_V C` of all layers are
    one pool: CARE-E. Scores, attention outputs and MLP outputs have units of their own; then each
    component keeps the overall share. Greedy is optimal here: kept sets are nested, and every step
    of a pool costs the same.
    """
    targets: Targets = {}
    pools: dict[str, dict[Slot, Spectrum]] = {}
    for slot, s in evidence.spectra.items():
        pools.setdefault(s.unit or slot[1], {})[slot] = s
    for pool in pools.values():
        dense = {slot: budget.price(s.cost, s.cost.full) for slot, s in pool.items()}
        ranks = fill_by_value(pool, sum(dense.values()) * budget.keep, budget)
        targets |= {
            slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in pool.items()
        }
    return targets


def fill_by_value(pool: Spectra, limit: float, budget: Budget) -> dict[Slot, int]:
    """Ranks of the slots of a pool: from the least ranks on, always the step of largest singular
    value, while it fits the limit.

    A step of several values counts by their mean. Ties go to the later component (values before
    keys, as in CARE), then to the later layer.
    """
    ranks = {slot: budget.least(s.cost) for slot, s in pool.items()}
    left = limit - sum(budget.price(s.cost, ranks[slot]) for slot, s in pool.items())
    # never increasing, so that no step counts more than those before it
    curves = {slot: torch.cummin(s.values, 0).values.tolist() for slot, s in pool.items()}
    order = {name: i for i, name in enumerate(dict.fromkeys(name for _, name in pool))}

    def following(slot: Slot) -> tuple[tuple[float, int, int], int] | None:
        s = pool[slot]
        rank = budget.next_rank(s.cost, ranks[slot])
        if rank is None:
            return None
        step = curves[slot][ranks[slot] // s.grain : (ranks[slot] + s.cost.step) // s.grain]
        key = (-sum(step) / len(step), -order[slot[1]], -slot[0])
        return key, budget.price(s.cost, rank) - budget.price(s.cost, ranks[slot])

    def take(slot: Slot) -> None:
        rank = budget.next_rank(pool[slot].cost, ranks[slot])
        assert rank is not None  # only steps that `following` gives are taken
        ranks[slot] = rank

    take_steps(pool, left, following, take)
    return ranks


POLICY = Policy(
    "waterfill",
    "The largest singular values, pooled over all slots in the same unit, are kept (CARE-E).",
    waterfill,
)
