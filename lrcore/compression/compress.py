"""Factorise once, allocate at every slider move, truncate and write when asked."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from ..allocation import plan_ranks
from ..budget import make_budget
from ..calibration.calibrate import calibrate
from ..calibration.gradients import fisher_information
from ..checkpoints.stock import stock_fit
from ..errors import InputError
from ..methods import find_method
from ..models.architectures import architecture_of, text_config
from ..models.layers import clone, read_layer
from ..models.load import LoadedModel
from ..models.stream import LayerStream
from ..plan import RankPlan
from ..policies import find_policy
from ..progress import Progress, silent
from ..recipe import Recipe
from ..spectra import Slot, Spectrum
from .evidence.probes import probe
from .evidence.search import search, search_key
from .factorise import Factorisation, factorise, truncate_layer
from .refit import refit_layer


def prepare(
    model: LoadedModel,
    recipe: Recipe,
    progress: Progress | None = None,
    seconds: dict[str, float] | None = None,
) -> Factorisation:
    """All that allocating and compressing by a recipe needs: calibration, factors, and what its
    policy measures.

    seconds, where given, receives the time of each stage. Raises InputError for an unknown method
    or policy before any work is done.
    """
    find_method(recipe.method).choose(recipe.options)
    policy, seconds = find_policy(recipe.policy), {} if seconds is None else seconds
    policy.choose(recipe.policy_options)
    with _timed(seconds, "calibrate"):
        calibration = calibrate(model, recipe, progress)
    with _timed(seconds, "factorise"):
        factors = factorise(model, calibration, recipe.method, progress, recipe.options)
    with _timed(seconds, "measure"):
        return measure_evidence(model, factors, recipe, progress)


def measure_evidence(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress | None = None
) -> Factorisation:
    """The factorisation with what the recipe's policy measures on the model, where it is not there
    yet.

    Probes of every slot or squared gradients of its weights, which serve every budget, or a search
    for the recipe's own budget. Others come back as they are.
    """
    policy = find_policy(recipe.policy)
    if policy.probed and factors.base_nll is None:
        return probe(model, factors, progress)
    if policy.gradients and any(s.fisher is None for s in factors.spectra.values()):
        found = fisher_information(model, factors.calibration, factors.spectra, progress)
        return replace(
            factors,
            spectra={slot: replace(s, fisher=found[slot]) for slot, s in factors.spectra.items()},
        )
    if policy.searched and factors.searched != search_key(recipe):
        return search(model, factors, recipe, lambda found: allocate(found, recipe).ranks, progress)
    return factors


def allocate(factors: Factorisation, recipe: Recipe) -> RankPlan:
    """Ranks for a recipe's policy, ratios, budget, temperature and overrides.

    Milliseconds: nothing is decomposed again.

    Raises InputError for an unknown policy, a budget the method cannot meet, or a ratio or override
    that names no slot.
    """
    row = find_policy(recipe.policy)
    if row.searched and factors.searched and factors.searched != search_key(recipe):
        raise InputError(
            f"Policy '{row.name}' was searched for another budget than this one; search again "
            "(lrcore.prepare does)."
        )
    spectra, influence, shape = factors.spectra, factors.influence, factors.shape
    fixed, offered = (
        _fixed_ranks(recipe, spectra),
        {slot: s.in_multiples(recipe.multiple) for slot, s in spectra.items()},
    )
    kind = find_method(recipe.method).budget(recipe.budget)
    budget = make_budget(kind, recipe.ratio, offered, shape.decoder_linear, shape.parameters)
    counted = {slot: s for slot, s in offered.items() if budget.counts(s.cost)}
    suggested = row.suggest(counted, budget, influence) if row.suggest else None
    temperature = (recipe.temperature or suggested) if row.suggest else None
    ranks = plan_ranks(
        recipe.policy,
        offered,
        budget,
        temperature or 1.0,
        influence,
        fixed,
        recipe.rounding == "nearest",
        recipe.component_ratios,
        recipe.policy_options,
    )
    plan = RankPlan(
        ranks,
        spectra,
        shape,
        kind,
        recipe.ratio,
        recipe.seq_len,
        temperature,
        suggested,
        factors.base_nll,
    )
    if {component for _, component in counted} <= set(
        recipe.component_ratios
    ):  # nothing is left to meet the overall ratio: it follows
        plan = replace(plan, asked=plan.summary()["achieved"])
    return plan


def _fixed_ranks(recipe: Recipe, spectra: dict[Slot, Spectrum]) -> dict[Slot, int]:
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
        fixed[slot] = (
            rank if rank <= max(cost.cap, cost.kv_cap) else cost.full
        )  # above, the factored form saves nothing
    return fixed


def compress(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorisation | None = None,
    plan: RankPlan | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """A smaller model by a recipe; the dense one is untouched.

    `factors` and `plan` are made where they are not given.

    With calibration "sequential" the ranks come from the dense model's spectra, and each layer is
    then solved again on what the compressed layers before it give; with `refit` it also makes up
    for what they have lost. The report holds the recipe, ranks, account, protocol and seconds per
    stage.
    """
    progress, seconds = progress or silent, {}
    refit = refits(recipe, model.network)
    if factors is not None and (factors.method, factors.options) != (
        recipe.method,
        find_method(recipe.method).choose(recipe.options),
    ):
        raise InputError(
            f"The factors given are of '{factors.method}' {factors.options}, the recipe says "
            "otherwise. Factorise again."
        )
    if factors is None:
        factors = prepare(model, recipe, progress, seconds)
    elif plan is None:
        with _timed(seconds, "measure"):
            factors = measure_evidence(model, factors, recipe, progress)
    with _timed(seconds, "allocate"):
        plan = plan or allocate(factors, recipe)
    with _timed(seconds, "compress"):
        network = _write(model, recipe, factors, plan, refit, progress)
    report = {
        "base": model.name,
        "base_fingerprint": model.fingerprint,
        "recipe": recipe.to_dict(),
        "ranks": plan.table().to_dict("records"),
        "summary": plan.summary(),
        "calibration": factors.calibration.protocol | {"mode": recipe.calibration, "refit": refit},
        "stock": stock_fit(model, plan).to_dict(),
        "seconds": seconds,
    }
    identity = json.dumps(
        [
            model.fingerprint,
            recipe.to_dict(),
            sorted([*slot, rank] for slot, rank in plan.ranks.items()),
        ]
    )
    fingerprint = hashlib.sha256(identity.encode()).hexdigest()
    return replace(
        model,
        name=f"{model.name} {recipe.method} {recipe.ratio:.0%}",
        network=network,
        fingerprint=fingerprint,
        report=report,
    )


def refits(recipe: Recipe, network: nn.Module) -> bool:
    """Whether a recipe refits: as it says, or as its method does by itself.

    Raises InputError where it says so and the family cannot.
    """
    possible = not architecture_of(network).norm_after
    if recipe.refit == "on" and not possible:
        family = text_config(network).model_type
        raise InputError(
            f"A {family} model norms what a component gives before adding it, so no refit is "
            "linear there. Use refit 'off'."
        )
    return possible and (
        recipe.refit == "on" or (recipe.refit == "auto" and find_method(recipe.method).refit)
    )


def _write(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorisation,
    plan: RankPlan,
    refit: bool,
    progress: Progress,
) -> nn.Module:
    """A clone with every layer compressed, one after the other; the calibration windows pass
    through it where the recipe needs them.
    """
    network, row, total = clone(model.network), find_method(factors.method), len(factors.layers)
    needs = row.reads(factors.options)
    sequential, tokens = recipe.calibration == "sequential", factors.calibration.tokens
    small = LayerStream(network, tokens) if sequential or refit else None
    dense = LayerStream(clone(model.network), tokens) if refit else None
    for index in range(total):
        progress("compress", index, total)
        own = factors.layers[index]
        if sequential and needs:
            moments = factors.calibration.joined(small.run(index, needs, advance=False), index)
            own = row.factor(read_layer(network, index), moments, **factors.options)
        truncate_layer(network, index, own, plan.ranks)
        if refit:
            refit_layer(network, index, dense, small)
        elif sequential:
            small.run(index)
    progress("compress", total, total)
    return network


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - begin, 4)
