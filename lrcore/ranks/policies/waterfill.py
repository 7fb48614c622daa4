"""CARE's allocation: the largest singular values of all slots are kept."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...layers.spectra import Slot, Spectrum
from ...system.settings import option
from ..budget import Budget, Spectra, take_known_steps
from ..evidence import Evidence
from .policy import Policy, Targets


@dataclass(frozen=True)
class WaterfillOptions:
    relative: bool = option(
        False,
        "Divide the singular values of each slot by the root of their sum of squares first, so "
        "that slots with small values do not end with few ranks. Off: eq. 2 of the paper.",
    )


def waterfill(evidence: Evidence, budget: Budget, options: WaterfillOptions) -> Targets:
    """Pool the singular values of all slots in the same unit, and keep the largest that fit the
    budget.

    CARE eq. 2. CARE's keys and values have the same unit (`Spectrum.unit`), so `W_K C` and `W_V C`
    of all layers form one pool: CARE-E. Scores, attention outputs and MLP outputs have different
    units; each component then keeps the overall share. With `relative`, values are divided by the
    norm of their slot (ours). Greedy is optimal here: kept sets are nested, and all steps of a pool
    have the same price.
    """
    targets: Targets = {}
    pools: dict[str, dict[Slot, Spectrum]] = {}
    for slot, s in evidence.spectra.items():
        spectrum = replace(s, values=shares(s.values)) if options.relative else s
        pools.setdefault(s.unit or slot[1], {})[slot] = spectrum
    for pool in pools.values():
        dense = {slot: budget.offer(s.cost).dense for slot, s in pool.items()}
        ranks = fill_by_value(pool, sum(dense.values()) * budget.keep, budget)
        targets |= {
            slot: budget.price(s.cost, ranks[slot]) / dense[slot] for slot, s in pool.items()
        }
    return targets


def shares(values: Tensor) -> Tensor:
    """Return values [k] divided by the root of their sum of squares; zeros stay."""
    norm = values.norm()
    return values / norm if norm > 0 else values


def fill_by_value(pool: Spectra, limit: float, budget: Budget) -> dict[Slot, int]:
    """Return the ranks of the slots of a pool.

    From the smallest ranks on, the step of the largest singular value is taken while it fits the
    limit. A step of several values counts by their mean. Ties go to the later component (values
    before keys, as in CARE), then to the later layer.
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
    """Return the mean value of each step from the smallest rank on, [steps], float64.

    The values never increase, so that no step counts more than an earlier one.
    """
    values, size = torch.cummin(s.values, 0).values, s.cost.step // s.grain
    complete = len(values) // size * size
    means = [values[:complete].reshape(-1, size).mean(1)]
    if complete < len(values):
        means.append(values[complete:].mean()[None])
    return torch.cat(means)[1:]


POLICY = Policy(
    "waterfill",
    "The largest singular values, pooled over all slots in the same unit, are kept (CARE-E).",
    waterfill,
    options=WaterfillOptions,
)
