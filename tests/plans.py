"""Ranks by the name of a policy and plain values, for tests of policies and rounding."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lrcore.methods import METHODS
from lrcore.ranks import allocation
from lrcore.ranks.allocation import Constraints
from lrcore.ranks.budget import Budget
from lrcore.ranks.evidence import Evidence, LossCurve, Probes
from lrcore.ranks.policies import find_policy


def chosen(policy: str, temperature: float, **options: Any) -> Any:
    """Return the options of a policy, with the temperature if it has one."""
    row = find_policy(policy)
    policy_options = row.choose(options)
    return replace(policy_options, temperature=temperature) if row.suggest else policy_options


def plan_ranks(
    policy: str,
    evidence: Evidence,
    budget: Budget,
    temperature: float = 1.0,
    options: Mapping[str, Any] | None = None,
    **constraints: Any,
) -> dict:
    """Call `allocation.plan_ranks` with the policy of this name."""
    policy_options = chosen(policy, temperature, **(options or {}))
    return allocation.plan_ranks(
        find_policy(policy), policy_options, evidence, budget, Constraints(**constraints)
    )


def cached(spectra: Mapping) -> int:
    """Return the cached numbers per token of the dense slots, to which a ratio is relative."""
    return sum(spectrum.cost.kv_dense for spectrum in spectra.values())


def probes(spectra: Mapping, increases: Mapping) -> Probes:
    """Return probes with these curves, which have an entry per rank of the slot's cost."""
    return Probes(1.0, {s: LossCurve(spectra[s].cost.ranks(), c) for s, c in increases.items()})


def one_form(method: str, names: Iterable[str], turn: int = 0) -> list[str]:
    """Return the slots of a layer for one form of each part: the first form for turn 0, other forms
    for other turns and parts.
    """
    forms, parts = METHODS[method].forms, dict[str, dict[str, list[str]]]()
    for name in names:
        part, form = forms.get(name, (name, ""))
        parts.setdefault(part, {}).setdefault(form, []).append(name)
    return [
        name
        for number, part_forms in enumerate(parts.values(), turn)
        for name in list(part_forms.values())[number * (turn > 0) % len(part_forms)]
    ]
