"""Ranks by a policy's name and plain values, for tests of policies and of rounding."""

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
    """The options of a policy, with the temperature where it has one."""
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
    """`allocation.plan_ranks` with the policy by its name."""
    policy_options = chosen(policy, temperature, **(options or {}))
    return allocation.plan_ranks(
        find_policy(policy), policy_options, evidence, budget, Constraints(**constraints)
    )


def cached(spectra: Mapping) -> int:
    """The numbers per token that the dense slots hold in the KV cache: what a ratio is of."""
    return sum(spectrum.cost.kv_dense for spectrum in spectra.values())


def probes(spectra: Mapping, increases: Mapping) -> Probes:
    """Probes whose curves are these tensors, one entry per rank of the slot's cost."""
    return Probes(1.0, {s: LossCurve(spectra[s].cost.ranks(), c) for s, c in increases.items()})


def one_form(method: str, names: Iterable[str], turn: int = 0) -> list[str]:
    """Of a layer's slots those of one form of every part: its first one at turn 0, and another one
    with every turn and every part.
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
