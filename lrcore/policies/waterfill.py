"""CARE's allocation: the largest singular values are kept, wherever they are."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..budget import Budget, Spectra, take_known_steps
from ..evidence import Evidence
from ..options import option
from ..spectra import Slot, Spectrum
from .policy import Policy, Targets


@dataclass(frozen=True)
class WaterfillOptions:
    relative: bool = option(
        False,
        "Divide the singular values of every slot by the root of their sum of squares first, so "
        "that a slot of small values is not left with few ranks. Off: eq. 2 of the paper.",
    )


def waterfill(evidence: Evidence, budget: Budget, options: WaterfillOptions) -> Targets:
    """CARE eq. 2: pool the singular values of all slots with the same unit, and keep the largest
    that fit the budget.

    CARE's keys and values have one unit (`Spectrum.unit`), so `W_K C` and `W_V C` of all layers are
    one pool: CARE-E. Scores, attention outputs and MLP outputs have units of their own; then each
    component keeps the overall share. With `relative` values are shares of the norm of their slot
    (ours). Greedy is optimal here: kept sets are nested, and every step
    of a pool costs the same.
    """
    targets: Targets = {}
    pools: dict[str, dict[Slot, Spectrum]] = {}
    for slot, s in evidence.spectra.items():
        own = replace(s, values=shares(s.values)) if options.relative else s
        pools.setdefault(s.unit or slot[1], {})[slot] = own
    for pool in pools.values():
        dense = {slot: budget.offer(s.cost).dense for slot, s in pool.items()}
        ranks = fill_by_value(pool, sum(dense.values()) * budget.keep, budget)
        targets |= {
            slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in pool.items()
        }
    return targets


def shares(values: Tensor) -> Tensor:
    """Values [k] over the root of their sum of squares; zeros stay."""
    norm = values.norm()
    return values / norm if norm > 0 else values


def fill_by_value(pool: Spectra, limit: float, budget: Budget) -> dict[Slot, int]:
    """Ranks of the slots of a pool: from the least ranks on, always the step of largest singular
    value, while it fits the limit.

    A step of several values counts by their mean. Ties go to the later component (values before
    keys, as in CARE), then to the later layer.
    """
    components = list(dict.fromkeys(name for _, name in pool))
    slots = sorted(pool, key=lambda slot: (components.index(slot[1]), slot[0]), reverse=True)
    offers = {slot: budget.offer(pool[slot].cost) for slot in slots}
    steps = take_known_steps(
        {slot: -step_values(pool[slot])[: len(offers[slot].ranks) - 1] for slot in slots},
        {slot: offers[slot].prices.diff() for slot in slots},
        limit - sum(int(offer.prices[0]) for offer in offers.values()),
    )
    return {slot: offers[slot].ranks[steps[slot]] for slot in pool}


def step_values(s: Spectrum) -> Tensor:
    """The mean value of every step from the least rank on; never increasing, so that no step counts
    more than those before it. [steps], float64
    """
    values, size = torch.cummin(s.values, 0).values, s.cost.step // s.grain
    whole = len(values) // size * size
    means = [values[:whole].reshape(-1, size).mean(1)]
    if whole < len(values):
        means.append(values[whole:].mean()[None])
    return torch.cat(means)[1:]


POLICY = Policy(
    "waterfill",
    "The largest singular values, pooled over all slots in the same unit, are kept (CARE-E).",
    waterfill,
    options=WaterfillOptions,
)
