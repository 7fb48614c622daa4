"""Ranks for a recipe, from factors and their evidence. The sliders call it on each move."""

from collections.abc import Mapping
from dataclasses import replace

from ...layers.experts import STACKED
from ...layers.spectra import Slot, Spectrum, by_part
from ...methods import METHODS, find_method
from ...ranks.allocation import Constraints, available_forms, plan_ranks
from ...ranks.budget import Prices, make_budget
from ...ranks.evidence import Evidence, Probes
from ...ranks.plan import RankPlan, Shape
from ...ranks.policies import find_policy
from ...ranks.quantization import Quantization, with_bits, with_equal_bits, with_more_bits
from ...ranks.repricing import Latency, priced_in_multiply_adds
from ...recipes.recipe import Recipe
from ...recipes.targets import DEFAULT, QUANTIZED, SPARSE, TARGETS, Target, not_native
from ...system.as_json import json_text
from ...system.errors import InputError
from .factorize import Factorization

UNIFORM = "uniform"
BOTH = "both"  # decoder parameters and the KV cache


def allocate(factors: Factorization, recipe: Recipe) -> RankPlan:
    """Return the ranks for a recipe's policy, ratios, budget, temperature and overrides.

    Takes milliseconds, without a decomposition.

    Raises InputError if the method cannot compress the model, for an unknown policy, for a budget
    that the method cannot meet, for a ratio or override of an unknown slot, and if evidence that
    the policy needs was not measured, or was measured for a different budget.
    """
    _check_some_slots(factors)
    _check_budget_of_evidence(factors, recipe)
    return _plan_of_both(factors, recipe) if recipe.budget == BOTH else _plan(factors, recipe)


def _plan(factors: Factorization, recipe: Recipe) -> RankPlan:
    """Return the ranks for a single budget. Raises InputError as `allocate` does."""
    row, shape = find_policy(recipe.policy), factors.shape
    kind, target = find_method(recipe.method).budget(recipe.budget), TARGETS[recipe.target]
    is_even = target.is_even(shape.family)
    constraints = Constraints(
        _fixed_ranks(recipe, factors.spectra),
        recipe.component_ratios,
        recipe.rounding == "nearest",
        is_even,
    )
    evidence = factors.evidence.restricted(
        available_forms(
            {
                slot: s.in_multiples(recipe.rank_multiple)
                for slot, s in native_slots(factors, target, constraints).items()
            },
            Prices(kind),
            constraints,
            row.forms or kind == "bytes",
        )
    )
    if kind == "bytes":
        return _plan_of_bytes(factors, recipe, evidence)
    latency = _latency(factors, kind)
    evidence, base = _priced(evidence, shape, kind, recipe.seq_len, latency)
    budget = make_budget(kind, recipe.ratio, evidence.spectra, base, *_capable_methods(factors))
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
        by_probes=row.needs == "probes" and not is_even,
        latency=latency,
        is_trained=recipe.trains,
    )
    if {component for _, component in counted} <= set(recipe.component_ratios):
        # all slots have manual ratios, which determine the overall ratio
        plan = replace(plan, requested=plan.account.achieved)
    return plan


def _plan_of_both(factors: Factorization, recipe: Recipe) -> RankPlan:
    """Return ranks that remove the ratio of the decoder parameters, and of the KV cache as well.

    If the ranks for the parameters shrink the cache enough, they are used. Otherwise the policy
    first chooses ranks for the cache; those below full are fixed, and the policy chooses the other
    ranks for the parameters. Raises InputError as `allocate` does.
    """
    plan = replace(_plan(factors, recipe.with_(budget="params")), budget=BOTH)
    costs = {slot: s.cost for slot, s in factors.spectra.items() if s.cost.kv_per_rank > 0}
    cached, ratios = {component for _, component in costs}, recipe.component_ratios
    if cached and cached <= set(ratios):
        # manual ratios determine the cache
        return replace(plan, requested=plan.account.achieved)
    if plan.account.removed_kv >= recipe.ratio - 1e-9:
        return plan
    of_cache = {name: ratio for name, ratio in ratios.items() if name in cached}
    ranks = _plan(factors, recipe.with_(budget="kv", component_ratios=of_cache)).ranks
    fixed = {
        slot: ranks[slot] for slot in ranks if slot in costs and ranks[slot] < costs[slot].full
    }
    names = {f"{layer}.{component}": rank for (layer, component), rank in fixed.items()}
    shrunk = {component for _, component in fixed}
    of_parameters = recipe.with_(
        budget="params",
        rank_overrides={**recipe.rank_overrides, **names},
        component_ratios={name: ratio for name, ratio in ratios.items() if name not in shrunk},
    )
    return replace(_plan(factors, of_parameters), budget=BOTH)


def _plan_of_bytes(factors: Factorization, recipe: Recipe, evidence: Evidence) -> RankPlan:
    """Return ranks and bits for a budget of bytes.

    evidence: about the slots on offer. Policy `uniform` keeps full ranks and takes the largest
    number of bits that fits, the same for all slots. Raises InputError as `allocate` does.
    """
    check_budget(recipe)
    row, shape = find_policy(recipe.policy), factors.shape
    quantization: Quantization = factors.evidence.get("quantization")
    priced, origin = with_bits(evidence, quantization, shape.itemsize)
    budget = make_budget(
        "bytes", recipe.ratio, priced.spectra, shape.bytes, *_capable_methods(factors)
    )
    if recipe.policy == UNIFORM:
        equal = with_equal_bits(evidence.spectra, quantization, budget.limit, shape.itemsize)
        if equal is None:
            raise InputError(
                f"A ratio of {recipe.ratio:g} of 'bytes' is more than equal bits can remove here. "
                "Lower the ratio, or choose policy probed."
            )
        bits = equal
        ranks = {slot: evidence.spectra[slot].cost.full for slot in equal}
    else:
        nearest = Constraints(nearest=recipe.rounding == "nearest")
        options = row.choose(recipe.policy_options)
        chosen = plan_ranks(row, options, priced, budget, nearest)
        spent = sum(priced.spectra[slot].cost.parameters(rank) for slot, rank in chosen.items())
        ranks = {origin[slot][0]: rank for slot, rank in chosen.items()}
        bits = dict(origin[slot] for slot in chosen)
        bits = with_more_bits(ranks, bits, evidence, budget.limit - spent, shape.itemsize)
    ranks = {slot: ranks[slot] for slot in evidence.spectra if slot in ranks}  # in their order
    return RankPlan(
        ranks=ranks,
        spectra={slot: factors.spectra[slot] for slot in ranks},
        shape=shape,
        budget="bytes",
        requested=recipe.ratio,
        seq_len=recipe.seq_len,
        probes=_probes(evidence, recipe),
        by_probes=row.needs == "probes",
        bits={slot: slot_bits for slot, slot_bits in bits.items() if slot_bits},
        quantization=quantization,
    )


def check_budget(recipe: Recipe) -> None:
    """Raise InputError if a budget of bytes does not go with other settings of the recipe."""
    if recipe.budget != "bytes":
        return
    row = find_method(recipe.method)
    options = row.choose(recipe.options)
    conflicts = {
        "the ranks, the forms and the bits are chosen together from measured losses. Choose policy "
        "probed.": recipe.policy not in ("probed", UNIFORM),
        "the bits of a component with its own ranks or ratio would not be chosen. Remove the rank "
        "overrides and component ratios.": bool(recipe.rank_overrides or recipe.component_ratios),
        f"target {recipe.target} does not run all quantized structures. Choose no target, and "
        "export afterwards.": recipe.target != DEFAULT,
        "training would undo the quantization of a layer. Choose refit on.": recipe.trains,
        "the method's options quantize factors or keep sparse matrices. Choose other options or "
        "another method.": bool({QUANTIZED, SPARSE} & row.structures(options)),
    }
    for reason, applies in conflicts.items():
        if applies:
            raise InputError(f"With budget bytes, {reason}")


def _priced(
    evidence: Evidence, shape: Shape, kind: str, context: int, latency: Latency | None
) -> tuple[Evidence, int]:
    """Return the evidence with the prices of ranks under a budget, and the dense model's price.

    context: tokens in the cache, for FLOPs.
    """
    if latency is not None:
        return evidence.restricted(latency.priced(evidence.spectra)), latency.nanoseconds
    if kind == "flops":
        priced = priced_in_multiply_adds(evidence.spectra, context)
        return evidence.restricted(priced), shape.multiply_adds(context)
    return evidence, shape.base(kind)


def _capable_methods(factors: Factorization) -> tuple[list[str], list[str]]:
    """Return the methods to name in an error message: for the KV cache, and for experts.

    A list is empty if this method shrinks the cache or compresses experts itself, or if the model
    has no experts.
    """
    method, shrinking, for_experts = find_method(factors.method), list[str](), list[str]()
    if not method.shrinks_kv:
        shrinking = [row.name for row in METHODS.values() if row.shrinks_kv]
    if factors.shape.experts and not method.solves_experts:
        for_experts = [row.name for row in METHODS.values() if row.solves_experts]
    return shrinking, for_experts


def _latency(factors: Factorization, kind: str) -> Latency | None:
    """Return the times of the layers, for a budget of latency.

    Raises InputError if they were not measured.
    """
    return factors.evidence.get("latency") if kind == "latency" else None


def _check_some_slots(factors: Factorization) -> None:
    """Raise InputError if there are no slots, as for LLM-Pruner on experts with a single head."""
    if not factors.spectra:
        parts = ", ".join(find_method(factors.method).components)
        fit = ", ".join(row.name for row in METHODS.values() if {"o", "down"} <= {*row.components})
        raise InputError(
            f"Method {factors.method} cannot compress this model: no part that the method changes "
            f"({parts}) can have a lower rank. Methods on single matrices always apply: {fit}."
        )


def native_slots(
    factors: Factorization, target: Target, constraints: Constraints
) -> Mapping[Slot, Spectrum]:
    """Return the slots of forms that a target runs; other components stay dense.

    Raises InputError if the target runs none, and for a manual rank or ratio of a different
    component.
    """
    row, options = find_method(factors.method), factors.options
    components = {component for _, component in factors.spectra}
    structures = {component: row.structure(component, options) for component in components}
    if not target.native & set(structures.values()):
        methods = _fitting_methods(target)
        raise not_native(target, factors.method, set(structures.values()), methods)
    manual = {component for _, component in constraints.fixed} | {*constraints.ratios}
    for component in sorted(manual & structures.keys()):
        if structures[component] not in target.native:
            raise InputError(
                f"Target {target.name} does not run {structures[component]}: set no rank or ratio "
                f"for {component}, or choose no target."
            )
    return {
        slot: s.in_multiples(STACKED if target.standard and s.cost.copies > 1 else 1)
        for forms in by_part(factors.spectra).values()  # parts keep their order
        for form in forms.values()
        for slot, s in form.items()
        if structures[slot[1]] in target.native
    }


def _fitting_methods(target: Target) -> list[str]:
    """Return the methods that produce a structure of a target with their default options."""
    return [row.name for row in METHODS.values() if target.native & row.default_structures()]


def _probes(evidence: Evidence, recipe: Recipe) -> Probes | None:
    """Return the probes, without the interaction if it was measured with other passes."""
    if not evidence.has("probes"):
        return None
    probes: Probes = evidence.get("probes")
    interaction = probes.interaction
    if interaction is None or interaction.passes == (recipe.refit, recipe.calibration_mode):
        return probes
    return replace(probes, interaction=None)


def allocation_key(recipe: Recipe) -> str:
    """Return the settings that ranks depend on besides the factors, the policy and the options.

    Evidence that is valid for a single budget is measured for this key.
    """
    names = {"dtype", *Recipe.fields_of("windows", "plan")}
    return json_text(recipe.identity(names), sort_keys=True)


def _check_budget_of_evidence(factors: Factorization, recipe: Recipe) -> None:
    needs, evidence = find_policy(recipe.policy).needs, factors.evidence
    if evidence.has(needs) and not evidence.has(needs, allocation_key(recipe)):
        raise InputError(
            f"Policy '{recipe.policy}' needs evidence '{needs}', which was measured for another "
            "budget: call lrcore.measure_evidence or lrcore.prepare again."
        )


def _fixed_ranks(recipe: Recipe, spectra: Mapping[Slot, Spectrum]) -> dict[Slot, int]:
    """Return the recipe's overrides by slot.

    Raises InputError for an unknown slot or an invalid rank.
    """
    fixed = {}
    for name, rank in recipe.rank_overrides.items():
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
        # above the cap, the factored form saves no parameters
        fixed[slot] = rank if rank <= max(cost.cap, cost.kv_cap) else cost.full
    return fixed
