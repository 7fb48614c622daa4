"""Ranks set by hand: the steps that can be undone, and what they changed against the policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lrcore

MOST_STEPS = 200

Ranks = dict[str, int]  # "layer.component" -> rank, as in a recipe's overrides
History = dict[str, Any]  # plain values: a browser holds it
EMPTY: History = {"past": [], "future": [], "gesture": None}


def slot_name(slot: tuple | list) -> str:
    return f"{slot[0]}.{slot[1]}"


def read_rank(rank: Any) -> int:
    """A rank as it was typed. Raises InputError for what is no whole number."""
    try:
        number = float(rank)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer():
        raise lrcore.InputError(f"'{str(rank)[:80]}' is no rank: type a whole number.")
    return int(number)


def step(
    history: History, now: Ranks, then: Ranks, gesture: str | None = None
) -> tuple[Ranks, History]:
    """Go from the ranks `now` to `then`. Steps of one gesture (one drag) are undone together."""
    if then == now:
        return now, history
    goes_on = gesture is not None and gesture == history["gesture"]
    past = history["past"] if goes_on else [*history["past"], now][-MOST_STEPS:]
    return then, {"past": past, "future": [], "gesture": gesture}


def undo(history: History, now: Ranks) -> tuple[Ranks, History]:
    if not history["past"]:
        return now, history
    *past, then = history["past"]
    return then, {"past": past, "future": [now, *history["future"]], "gesture": None}


def redo(history: History, now: Ranks) -> tuple[Ranks, History]:
    if not history["future"]:
        return now, history
    then, *future = history["future"]
    return then, {"past": [*history["past"], now], "future": future, "gesture": None}


@dataclass(frozen=True)
class Change:
    """A slot whose rank differs from what the policy alone gives.

    policy: its rank there; None where the policy takes another form of its part. parameters: how
    many more it costs, in that case than its matrices as they are; hand: set by hand, not by the
    policy in answer to that.
    """

    layer: int
    component: str
    policy: int | None
    rank: int
    parameters: int
    hand: bool


def changes(plan: lrcore.RankPlan, alone: lrcore.RankPlan, hand: Mapping[str, int]) -> list[Change]:
    """Slots that differ between a plan and the policy's own (alone), those set by hand first, then
    those whose parameters changed most in answer.
    """
    differing = []
    for slot, rank in plan.ranks.items():
        before, cost = alone.ranks.get(slot), plan.spectra[slot].cost
        if rank != before or slot_name(slot) in hand:
            unchanged = cost.full if before is None else before
            differing.append(
                Change(
                    *slot,
                    before,
                    rank,
                    cost.parameters(rank) - cost.parameters(unchanged),
                    slot_name(slot) in hand,
                )
            )
    return sorted(
        differing, key=lambda one: (not one.hand, -abs(one.parameters), one.layer, one.component)
    )
