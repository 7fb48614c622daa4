"""Ranks set manually, and the changes from the policy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lrcore
from lrcore.ranks.plan import RankPlan

Ranks = dict[str, int]  # "layer.component" -> rank, as in the rank_overrides of a recipe


def slot_name(slot: Sequence) -> str:
    return f"{slot[0]}.{slot[1]}"


def read_rank(rank: Any) -> int:
    """Return the rank that a person entered. Raises InputError unless it is a whole number."""
    try:
        number = float(rank)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer():
        raise lrcore.InputError(f"'{str(rank)[:80]}' is not a valid rank; enter a whole number.")
    return int(number)


@dataclass(frozen=True)
class Change:
    """A slot whose rank differs from the rank of the policy.

    policy_rank: None if the policy uses a different form of the part. parameters: number of
    additional parameters; if policy_rank is None, compared with the dense matrices. is_manual:
    whether the rank was set manually, rather than changed by the policy in response.
    """

    layer: int
    component: str
    policy_rank: int | None
    rank: int
    parameters: int
    is_manual: bool


def changes(plan: RankPlan, policy_plan: RankPlan, manual: Mapping[str, int]) -> list[Change]:
    """Return the slots whose ranks differ from the plan of the policy.

    Slots set manually are first, then slots by the size of the change in parameters.
    """
    differing = []
    for slot, rank in plan.ranks.items():
        policy_rank, cost = policy_plan.ranks.get(slot), plan.spectra[slot].cost
        if rank != policy_rank or slot_name(slot) in manual:
            reference = cost.full if policy_rank is None else policy_rank
            parameters = cost.parameters(rank) - cost.parameters(reference)
            is_manual = slot_name(slot) in manual
            differing.append(Change(*slot, policy_rank, rank, parameters, is_manual))

    def order(change: Change) -> tuple[bool, int, int, str]:
        return not change.is_manual, -abs(change.parameters), change.layer, change.component

    return sorted(differing, key=order)
