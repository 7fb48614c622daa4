"""Allocation policies: functions that share a budget among the slots.

A policy reads evidence and a budget, never a model. It returns targets, the share of its price that
each slot should keep; `allocation.round_to_ranks` rounds these to ranks that fit the budget. This
takes milliseconds, so a slider can call it on each move.
"""

from ...system.errors import as_name, unknown
from . import (
    bolaco,
    d_rank,
    duo_svd,
    energy,
    fisher,
    flat,
    global_ranking,
    greedy,
    lems,
    marginal,
    mix,
    owl,
    sensitivity,
    softmax,
    svd_llm_v2,
    swift_svd,
    uniform,
    waterfill,
    zs_svd,
)
from .policy import Policy, Targets

__all__ = ["POLICIES", "Policy", "Targets", "find_policy"]

POLICIES: dict[str, Policy] = {
    row.name: row
    for row in (
        uniform.POLICY,
        softmax.SOFTMAX,
        softmax.SOFTMAX_DUAL,
        waterfill.POLICY,
        greedy.POLICY,
        energy.POLICY,
        marginal.MARGINAL,
        mix.POLICY,
        bolaco.POLICY,
        owl.POLICY,
        svd_llm_v2.POLICY,
        fisher.POLICY,
        global_ranking.POLICY,
        flat.POLICY,
        swift_svd.POLICY,
        d_rank.POLICY,
        zs_svd.POLICY,
        sensitivity.POLICY,
        duo_svd.POLICY,
        lems.POLICY,
        marginal.PROBED,
    )
}


def find_policy(name: str) -> Policy:
    """Return the row of a policy. Raises InputError with the nearest name for an unknown policy."""
    if not isinstance(name, str) or name not in POLICIES:
        raise unknown("policy", as_name(name), POLICIES)
    return POLICIES[name]
