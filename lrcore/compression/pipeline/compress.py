"""The compression of a model by a recipe: factorize once, allocate, truncate and write."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from transformers import PreTrainedModel

from ...checkpoints.export import check_target
from ...checkpoints.standard.standard_fit import standard_fit
from ...data.windows import key_of
from ...layers.account import SizeAndCost
from ...methods import find_method
from ...models.load import LoadedModel
from ...models.model_size import measure
from ...models.structure import compressed_structures
from ...ranks.plan import RankPlan
from ...ranks.policies import find_policy
from ...recipes.history import Compressed, StandardFit
from ...recipes.provenance import BaseModel
from ...recipes.recipe import TRAINED, Recipe
from ...recipes.targets import TARGETS
from ...system.as_json import json_text
from ...system.errors import InputError
from ...system.progress import Progress, silent
from ..calibration.calibrate import Calibration, calibrate, method_needs
from ..evidence.measure import evidence_key, measure_evidence, measure_for_ranks
from ..solve.allocate import check_budget
from ..solve.compress_layers import compress_layers, has_refit
from ..solve.distill import distill, distillation_windows, schedule_of
from ..solve.factorize import Factorization, factorize, method_options
from ..solve.tokens_needed import tokens_needed
from ..step_rules import check_may_follow
from .choose_plan import choose_plan
from .model_bounds import check_has_bounds, plan_bounds


def prepare(
    model: LoadedModel,
    recipe: Recipe,
    progress: Progress | None = None,
    seconds: dict[str, float] | None = None,
) -> Factorization:
    """Return what allocating and compressing by a recipe needs.

    That is the calibration, the factors, and the evidence of the policy.

    seconds: receives the time of each stage. Raises InputError as `check_can_compress` does, before
    any work starts.
    """
    check_can_compress(model, recipe)
    seconds = {} if seconds is None else seconds
    factors = _factorize(model, recipe, method_options(recipe), progress, seconds)
    with _timed(seconds, "measure"):
        return measure_evidence(model, factors, recipe, progress)


def compress(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorization | None = None,
    plan: RankPlan | None = None,
    progress: Progress | None = None,
    *,
    bounds: bool = False,
) -> LoadedModel:
    """Return a smaller model, compressed by a recipe; the dense model is unchanged.

    factors, plan: made if None; factors then cover only the forms that the recipe can use. bounds:
    add the error bounds of method "modegpt" to the history, which takes a further pass over the
    calibration windows.

    With calibration mode "sequential" the ranks follow from the dense model's spectra, and each
    layer is then solved again on the outputs of the compressed layers before it. With `refit` each
    layer also compensates for the errors of the layers before it. The history gains `Compressed`:
    recipe, ranks, protocol and seconds per stage.

    Raises InputError for factors of a different method, and as `prepare` and `allocate` do.
    """
    progress = progress or silent
    seconds: dict[str, float] = {}
    check_can_compress(model, recipe)
    refit = has_refit(recipe, model.network)
    if bounds:
        check_has_bounds(recipe.method)
    if factors is None:
        factors = _factorize(model, recipe, _single_plan_options(recipe), progress, seconds)
    else:
        _check_factors(factors, recipe)
    if plan is None:
        with _timed(seconds, "measure"):
            factors = _measure(model, factors, recipe, progress)
        with _timed(seconds, "allocate"):
            plan = choose_plan(model, factors, recipe)
    fit = _checked_fit(model, recipe, plan)
    error_bounds = tuple(plan_bounds(model, factors, plan, progress)) if bounds else ()
    network, steps = _solve(model, recipe, factors, plan, progress, seconds)
    account = _account(plan, network)
    protocol = factors.calibration.protocol | {"mode": recipe.calibration_mode, "refit": refit}
    protocol |= _missing_tokens(model, recipe, factors)
    if steps is not None:
        protocol["distillation_steps"] = steps
    step = Compressed(recipe, plan.slot_ranks, protocol, fit, seconds, error_bounds)
    return replace(
        model,
        name=f"{model.name} {recipe.method} {recipe.ratio:.0%}",
        network=network,
        fingerprint=_fingerprint(model, recipe, plan, factors.calibration),
        history=(*model.history, step),
        base=BaseModel(model.name, model.fingerprint),
        account=account.without_prediction() if steps else account,
    )


def _account(plan: RankPlan, network: PreTrainedModel) -> SizeAndCost:
    """Return the account of a plan; its bytes are those of the network if the budget counts them,
    since the plan rounds sizes up.
    """
    if plan.budget != "bytes":
        return plan.account
    stored = replace(plan.account.model, bytes=measure(network).stored)
    return replace(plan.account, model=stored)


def _solve(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorization,
    plan: RankPlan,
    progress: Progress,
    seconds: dict[str, float],
) -> tuple[PreTrainedModel, int | None]:
    """Return a clone of the network with the ranks of a plan, distilled if the recipe says so, and
    the number of steps that were kept; None if it is not distilled.
    """
    with _timed(seconds, "compress"):
        network = compress_layers(model, recipe, factors, plan, progress)
    schedule = schedule_of(recipe, model, _text_tokens(factors.calibration))
    if schedule is None:
        return network, None
    with _timed(seconds, "distill"):
        windows = distillation_windows(model, recipe, schedule)
        key = _fingerprint(model, recipe, plan, factors.calibration)
        return network, distill(network, model, windows, schedule, key, progress)


def _factorize(
    model: LoadedModel,
    recipe: Recipe,
    options: Mapping[str, Any],
    progress: Progress | None,
    seconds: dict[str, float],
) -> Factorization:
    """Return the calibrated factors with these options of the method."""
    with _timed(seconds, "calibrate"):
        calibration = calibrate(model, recipe, progress, method_needs(recipe))
    with _timed(seconds, "factorize"):
        return factorize(model, calibration, recipe.method, progress, options)


def _measure(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Factorization:
    """Return the factors with the evidence of the policy.

    Without what only predictions need if the model is distilled: they refer to the model before it.
    """
    if schedule_of(recipe, model, _text_tokens(factors.calibration)) is None:
        return measure_evidence(model, factors, recipe, progress)
    return measure_for_ranks(model, factors, recipe, progress)


def _single_plan_options(recipe: Recipe) -> dict[str, Any]:
    """Return the method's options for factors of a single plan, without forms that it cannot use.

    All forms are needed if the policy chooses between them, if ranks or ratios are set manually, if
    the target does not run the first forms, or if evidence is measured, which is cached for other
    recipes.
    """
    row, options = find_method(recipe.method), method_options(recipe)
    is_manual = recipe.rank_overrides or recipe.component_ratios
    is_native = row.default_structures() <= TARGETS[recipe.target].native
    chooses_forms = find_policy(recipe.policy).forms
    if chooses_forms or is_manual or not is_native or evidence_key(recipe):
        return options
    return row.with_first_forms(options)


def _missing_tokens(model: LoadedModel, recipe: Recipe, factors: Factorization) -> dict[str, int]:
    """Return the number of tokens that the recipe needs, if the calibration has fewer, and the
    number of experts with too few tokens, if the method solves experts by moments.
    """
    row, calibration = find_method(factors.method), factors.calibration
    needed = tokens_needed(model.network, recipe)
    missing = {"tokens_needed": needed} if calibration.tokens.numel() < needed else {}
    rare = calibration.rare_experts if row.solves_experts and row.needs else 0
    return missing | ({"rare_experts": rare} if rare else {})


def _checked_fit(model: LoadedModel, recipe: Recipe, plan: RankPlan) -> StandardFit:
    """Return how a plan fits the standard classes. Raises InputError if the target needs them and
    the plan does not fit.
    """
    fit = standard_fit(model, plan)
    if TARGETS[recipe.target].standard and not fit.qualifies:
        raise InputError(
            f"Target {recipe.target}: {'; '.join(fit.reasons)}. Choose another method or target."
        )
    return fit


def _check_factors(factors: Factorization, recipe: Recipe) -> None:
    """Raise InputError if factors have a method or options other than the recipe's.

    Options that the budget adds may be missing.
    """
    row = find_method(recipe.method)
    options = [row.choose(options) for options in (recipe.options, method_options(recipe))]
    if factors.method != recipe.method or factors.options not in options:
        raise InputError(
            f"The factors are of method '{factors.method}' with options "
            f"{asdict(factors.options)}, which differ from the recipe. Factorize again."
        )


def check_recipe(recipe: Recipe) -> None:
    """Raise InputError for an unknown method or policy, for an invalid option, and as
    `check_budget` does.
    """
    find_method(recipe.method).choose(recipe.options)
    find_policy(recipe.policy).choose(recipe.policy_options)
    check_budget(recipe)


def check_can_compress(model: LoadedModel, recipe: Recipe) -> None:
    """Raise InputError for an invalid recipe, or if it cannot be applied to the model.

    See `STEP_RULES` for the steps and structures of a model that exclude a recipe.
    """
    check_recipe(recipe)
    check_may_follow(
        Compressed, model.history, model.name, compressed_structures(model.network), recipe
    )
    check_target(model, recipe)
    if recipe.distills and model.offloaded:
        raise InputError(
            f"Refit '{recipe.refit}' needs the complete model in memory. Load it without offload, "
            f"or use refit '{TRAINED}'."
        )


def _fingerprint(
    model: LoadedModel, recipe: Recipe, plan: RankPlan, calibration: Calibration
) -> str:
    """Return the fingerprint of the compressed model.

    It follows from the base model, the calibration windows, the settings of the recipe and the
    ranks, and not from the paths of model and text or the machine.
    """
    covered = {*Recipe.fields_of("source", "windows")}
    schedule = schedule_of(recipe, model, _text_tokens(calibration))
    if schedule is not None:  # on other windows, which `seed` and `bos` determine
        covered -= {"seed", "bos"}
    settings = {name: value for name, value in recipe.identity().items() if name not in covered}
    if schedule is not None and not recipe.distills:
        settings["distillation"] = schedule.key
    inputs = [calibration.protocol["fingerprint"], key_of(calibration.tokens), model.dtype]
    identity = json_text([model.fingerprint, inputs, settings, *plan.key], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _text_tokens(calibration: Calibration) -> int | None:
    """Return the number of tokens of the calibration text, None if unknown."""
    tokens: int | None = calibration.protocol.get("tokens_available")
    return tokens


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - begin, 4)
