"""From a recipe to a smaller model: factorise once, allocate, truncate and write."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from ..as_json import json_text
from ..calibration.calibrate import Calibration, calibrate
from ..checkpoints.fitting import check_target
from ..checkpoints.stock import stock_fit
from ..data.windows import key_of
from ..errors import InputError
from ..history import Compressed
from ..may_follow import check_may_follow
from ..methods import find_method
from ..models.load import LoadedModel
from ..models.structure import forms_of
from ..plan import RankPlan
from ..policies import find_policy
from ..progress import Progress, silent
from ..provenance import BaseModel
from ..recipe import Recipe
from ..targets import TARGETS
from .evidence.table import evidence_key, measure_evidence
from .factorise import Factorisation, factorise, method_options
from .settle import settle
from .write import refits, written


def prepare(
    model: LoadedModel,
    recipe: Recipe,
    progress: Progress | None = None,
    seconds: dict[str, float] | None = None,
) -> Factorisation:
    """All that allocating and compressing by a recipe needs: calibration, factors, and what its
    policy measures.

    seconds, where given, receives the time of each stage. Raises InputError as `check_compressed`
    does, before any work is done.
    """
    check_compressed(model, recipe)
    seconds = {} if seconds is None else seconds
    return _prepared(model, recipe, method_options(recipe), progress, seconds)


def compress(
    model: LoadedModel,
    recipe: Recipe,
    factors: Factorisation | None = None,
    plan: RankPlan | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """A smaller model by a recipe; the dense one is untouched.

    `factors` and `plan` are made where they are not given: only the forms that the recipe can take.

    With calibration "sequential" the ranks come from the dense model's spectra, and each layer is
    then solved again on what the compressed layers before it give; with `refit` it also makes up
    for what they have lost. The history gains `Compressed`: recipe, ranks, protocol and seconds per
    stage.

    Raises InputError for factors of another method, and as `prepare` and `allocate` do.
    """
    progress = progress or silent
    seconds: dict[str, float] = {}
    check_compressed(model, recipe)
    refit = refits(recipe, model.network)
    if factors is not None and not _fits(factors, recipe):
        raise InputError(
            f"The factors given are of '{factors.method}' {asdict(factors.options)}, the recipe "
            "says otherwise. Factorise again."
        )
    if factors is None:
        factors = _prepared(model, recipe, _options_of_one_plan(recipe), progress, seconds)
    elif plan is None:
        with _timed(seconds, "measure"):
            factors = measure_evidence(model, factors, recipe, progress)
    with _timed(seconds, "allocate"):
        plan = plan or settle(model, factors, recipe)
    fit = stock_fit(model, plan)
    if TARGETS[recipe.target].stock and not fit.qualifies:
        raise InputError(
            f"Target {recipe.target}: {'; '.join(fit.reasons)}. Choose another method or target."
        )
    with _timed(seconds, "compress"):
        network = written(model, recipe, factors, plan.ranks, progress)
    step = Compressed(
        recipe,
        plan.slot_ranks,
        factors.calibration.protocol
        | {"mode": recipe.calibration, "refit": refit}
        | _rare_experts(factors),
        fit,
        seconds,
    )
    return replace(
        model,
        name=f"{model.name} {recipe.method} {recipe.ratio:.0%}",
        network=network,
        fingerprint=_fingerprint(model, recipe, plan, factors.calibration),
        history=(*model.history, step),
        base=BaseModel(model.name, model.fingerprint),
        account=plan.account,
    )


def _prepared(
    model: LoadedModel,
    recipe: Recipe,
    options: Mapping[str, Any],
    progress: Progress | None,
    seconds: dict[str, float],
) -> Factorisation:
    """What `prepare` gives, with these options of the method."""
    with _timed(seconds, "calibrate"):
        calibration = calibrate(model, recipe, progress)
    with _timed(seconds, "factorise"):
        factors = factorise(model, calibration, recipe.method, progress, options)
    with _timed(seconds, "measure"):
        return measure_evidence(model, factors, recipe, progress)


def _options_of_one_plan(recipe: Recipe) -> dict[str, Any]:
    """The options of the method for factors that serve this recipe alone: without the forms that
    its plan cannot take.

    All forms where the policy chooses between them, the user may have chosen, the target does not
    run the first ones, or something is measured, which is kept on disk for other recipes.
    """
    row, options = find_method(recipe.method), method_options(recipe)
    by_hand = recipe.overrides or recipe.component_ratios
    native = row.own_structures() <= TARGETS[recipe.target].native
    if find_policy(recipe.policy).forms or by_hand or not native or evidence_key(recipe):
        return options
    return row.with_first_forms(options)


def _rare_experts(factors: Factorisation) -> dict[str, int]:
    """How many experts had too few tokens, where the method has solved them by moments."""
    row = find_method(factors.method)
    rare = factors.calibration.rare_experts if row.experts and row.needs else 0
    return {"rare_experts": rare} if rare else {}


def _fits(factors: Factorisation, recipe: Recipe) -> bool:
    """Whether factors are of the recipe's method and options, with or without what its budget adds
    to them.
    """
    row = find_method(recipe.method)
    options = (row.choose(given) for given in (recipe.options, method_options(recipe)))
    return factors.method == recipe.method and factors.options in options


def check_recipe(recipe: Recipe) -> None:
    """Raise InputError for an unknown method or policy, or an option that it does not have."""
    find_method(recipe.method).choose(recipe.options)
    find_policy(recipe.policy).choose(recipe.policy_options)


def check_compressed(model: LoadedModel, recipe: Recipe) -> None:
    """Raise InputError for an unknown method, policy or option, and where the recipe cannot take
    what happened to the model or what its layers hold, see `MAY_FOLLOW`.
    """
    check_recipe(recipe)
    check_may_follow(Compressed, model.history, model.name, forms_of(model.network), recipe)
    check_target(model, recipe)


def _fingerprint(
    model: LoadedModel, recipe: Recipe, plan: RankPlan, calibration: Calibration
) -> str:
    """What the compressed model is known by: it follows from the base, the calibration windows,
    what the recipe says besides, and the ranks; not from where model and text lie, nor from what
    computed it.
    """
    elsewhere = Recipe.fields_of("source", "windows")
    said = {name: one for name, one in recipe.identity().items() if name not in elsewhere}
    read = [calibration.protocol["fingerprint"], key_of(calibration.tokens), model.dtype]
    ranks = sorted([*slot, rank] for slot, rank in plan.ranks.items())
    identity = json_text([model.fingerprint, read, said, ranks], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - begin, 4)
