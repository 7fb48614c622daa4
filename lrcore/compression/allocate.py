"""Ranks for a recipe, from factors and their evidence: what a slider calls at every move."""

from collections.abc import Mapping
from dataclasses import replace

from .. import compute
from ..allocation import Constraints, open_forms, plan_ranks
from ..alternatives import by_part
from ..as_json import json_text
from ..budget import Prices, make_budget
from ..errors import InputError
from ..evidence import Evidence, Probes
from ..experts import STACKED
from ..latency import Latency
from ..methods import METHODS, find_method
from ..plan import RankPlan, Shape
from ..policies import find_policy
from ..recipe import Recipe
from ..spectra import Slot, Spectrum
from ..targets import TARGETS, Target, not_native
from .factorise import Factorisation


def allocate(factors: Factorisation, recipe: Recipe) -> RankPlan:
    """Ranks for a recipe's policy, ratios, budget, temperature and overrides.

    Milliseconds: nothing is decomposed again.

    Raises InputError where the method has nothing to compress in the model, for an unknown policy,
    a budget the method cannot meet, a ratio or override that names no slot, and where evidence that
    the policy needs was not measured, or for another budget.
    """
    _check_some_slots(factors)
    row, shape = find_policy(recipe.policy), factors.shape
    _check_budget_of_evidence(factors, recipe)
    kind, target = find_method(recipe.method).budget(recipe.budget), TARGETS[recipe.target]
    constraints = Constraints(
        _fixed_ranks(recipe, factors.spectra),
        recipe.component_ratios,
        recipe.rounding == "nearest",
        target.even,
    )
    evidence = factors.evidence.restricted(
        open_forms(
            {
                slot: s.in_multiples(recipe.multiple)
                for slot, s in native_slots(factors, target, constraints).items()
            },
            Prices(kind),
            constraints,
            row.forms,
        )
    )
    latency = _latency(factors, kind)
    evidence, base = _priced(evidence, shape, kind, recipe.seq_len, latency)
    able = _able_methods(factors)
    budget = make_budget(kind, recipe.ratio, evidence.spectra, base, *able)
    counted = {slot: s for slot, s in evidence.spectra.items() if budget.counts(s.cost)}
    options, temperature, suggested = row.choose(recipe.policy_options), None, None
    if row.suggest is not None:
        suggested = row.suggest(evidence.restricted(counted), budget)
        temperature = recipe.temperature or suggested
        options = replace(options, temperature=temperature)
    ranks = plan_ranks(row, options, evidence, budget, constraints)
    plan = RankPlan(
        ranks=ranks,
        spectra={slot: factors.spectra[slot] for slot in ranks},
        shape=shape,
        budget=kind,
        requested=recipe.ratio,
        seq_len=recipe.seq_len,
        temperature=temperature,
        suggested_temperature=suggested,
        probes=_probes(evidence, recipe),
        by_probes=row.needs == "probes" and not target.even,
        latency=latency,
    )
    if {component for _, component in counted} <= set(recipe.component_ratios):
        # nothing is left to meet the overall ratio: it follows
        plan = replace(plan, requested=plan.account.achieved)
    return plan


def _priced(
    evidence: Evidence, shape: Shape, kind: str, context: int, latency: Latency | None
) -> tuple[Evidence, int]:
    """The evidence with what ranks cost under a kind of budget, and what the dense model costs.
    context: tokens in the cache, for FLOPs.
    """
    if latency is not None:
        return evidence.restricted(latency.priced(evidence.spectra)), latency.nanoseconds
    if kind == "flops":
        priced = compute.priced(evidence.spectra, context)
        return evidence.restricted(priced), shape.multiply_adds(context)
    return evidence, shape.base(kind)


def _able_methods(factors: Factorisation) -> tuple[list[str], list[str]]:
    """The methods that shrink the KV cache, where this one never does; and those that compress
    experts, where the model has some and this method leaves them as they are.
    """
    own = find_method(factors.method)
    left = factors.shape.experts and not own.experts
    experts = [row.name for row in METHODS.values() if row.experts] if left else []
    never = [] if own.shrinks_kv else [row.name for row in METHODS.values() if row.shrinks_kv]
    return never, experts


def _latency(factors: Factorisation, kind: str) -> Latency | None:
    """What the layers take, for a budget of it. Raises InputError where it was not measured."""
    return factors.evidence.get("latency") if kind == "latency" else None


def _check_some_slots(factors: Factorisation) -> None:
    """Of a model of experts with a single head, say, there is nothing that LLM-Pruner removes."""
    if not factors.spectra:
        parts = ", ".join(find_method(factors.method).components)
        fit = ", ".join(row.name for row in METHODS.values() if {"o", "down"} <= {*row.components})
        raise InputError(
            f"Method {factors.method} has nothing to compress in this model: it has no part that "
            f"can lose rank of those that the method changes ({parts}). Methods on single matrices "
            f"always have: {fit}."
        )


def native_slots(
    factors: Factorisation, target: Target, constraints: Constraints
) -> Mapping[Slot, Spectrum]:
    """The slots of those forms that a target runs; what it does not run stays dense.

    Raises InputError where there are none, and for a rank or ratio set by hand of another.
    """
    row, options = find_method(factors.method), factors.options
    components = {component for _, component in factors.spectra}
    own = {component: row.structure(component, options) for component in components}
    if not target.native & set(own.values()):
        raise not_native(target, factors.method, set(own.values()), _fitting(target))
    by_hand = {component for _, component in constraints.fixed} | {*constraints.ratios}
    for component in sorted(by_hand & own.keys()):
        if own[component] not in target.native:
            raise InputError(
                f"Target {target.name} does not run {own[component]}: leave {component} as it is, "
                "or leave the target out."
            )
    return {
        slot: s.in_multiples(STACKED if target.stock and s.cost.copies > 1 else 1)
        for forms in by_part(factors.spectra).values()  # parts keep their order
        for form in forms.values()
        for slot, s in form.items()
        if own[slot[1]] in target.native
    }


def _fitting(target: Target) -> list[str]:
    """The methods of which a target runs something, with their own options."""
    return [row.name for row in METHODS.values() if target.native & row.own_structures()]


def _probes(evidence: Evidence, recipe: Recipe) -> Probes | None:
    """The probes, as far as they serve predictions of the recipe: what slots lose together depends
    on the passes.
    """
    if not evidence.has("probes"):
        return None
    probes: Probes = evidence.get("probes")
    own = probes.interaction
    if own is None or own.passes == (recipe.refit, recipe.calibration):
        return probes
    return replace(probes, interaction=None)


def allocation_key(recipe: Recipe) -> str:
    """What the ranks depend on besides the factors, the policy and its options; equal for recipes
    that differ in nothing else. Evidence that serves one budget alone is measured for this key.
    """
    names = {"dtype", *Recipe.fields_of("windows", "plan")}
    kept = {name: value for name, value in recipe.identity().items() if name in names}
    return json_text(kept, sort_keys=True)


def _check_budget_of_evidence(factors: Factorisation, recipe: Recipe) -> None:
    needs, evidence = find_policy(recipe.policy).needs, factors.evidence
    if evidence.has(needs) and not evidence.has(needs, allocation_key(recipe)):
        raise InputError(
            f"Policy '{recipe.policy}' needs evidence '{needs}', which was measured for another "
            "budget than this one: call lrcore.measure_evidence or lrcore.prepare again."
        )


def _fixed_ranks(recipe: Recipe, spectra: Mapping[Slot, Spectrum]) -> dict[Slot, int]:
    """The recipe's overrides by slot. Raises InputError for one that names no slot or no rank."""
    fixed = {}
    for name, rank in recipe.overrides.items():
        layer, _, component = name.partition(".")
        slot = (int(layer), component)
        if slot not in spectra:
            components = sorted({component for _, component in spectra})
            layers = 1 + max(layer for layer, _ in spectra)
            raise InputError(
                f"Override '{name}': method '{recipe.method}' has components "
                f"{', '.join(components)} in layers 0 to {layers - 1}."
            )
        cost = spectra[slot].cost
        if not 1 <= rank <= cost.full or (rank % cost.step and rank != cost.full):
            raise InputError(
                f"Override '{name}={rank}': ranks go from {cost.step} to {cost.full} in steps of "
                f"{cost.step}."
            )
        # above the cap, the factored form saves nothing
        fixed[slot] = rank if rank <= max(cost.cap, cost.kv_cap) else cost.full
    return fixed
