"""Joint losses of slots: complete plans, compressed as the recipe does and measured.

Two plans of policy `probed` and a uniform plan are measured on windows of the calibration text that
the moments have not seen. The results correct the sum of the single probes.
"""

import math
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data import held_out, load_texts, make_windows, with_bos
from ...methods import find_method
from ...models.layers import clone
from ...models.load import LoadedModel
from ...ranks.plan import RankPlan
from ...ranks.prediction import Interaction, JointMeasurement, Target
from ...recipes.recipe import Recipe
from ...system.cache import keep_value, read_as
from ...system.errors import InputError
from ...system.progress import Progress
from ...system.units import Work, map_units
from ..solve.allocate import allocate
from ..solve.compress_layers import requests_refit, window_passes
from ..solve.factorize import Factorization
from ..solve.refit import refit_key
from .divergence import DensePredictions
from .kind import cache_file
from .losses import WINDOWS, window_losses
from .plan_loss import measure_plan

FORMAT = 3  # of the files on disk; increase it when the meaning of the contents changes
# Policy and ratio of the plans, in the method's default budget
PLANS = (("probed", 0.3), ("probed", 0.5), ("uniform", 0.3))
# Tokens of the calibration windows (at least one window) that the compression of a measured plan
# uses: a refit on more tokens takes proportionally longer and changes the prediction little.
REFIT_TOKENS = 2**15


def measure_interaction(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Interaction:
    """Compress and measure three plans of probed factors; the result is cached on disk.

    Raises InputError if the recipe's refit is not possible.
    """
    joint = _joint(model, factors, recipe)
    if (interaction := read_as(joint.file, joint.interaction)) is None:
        losses = window_losses(model.network, joint.target.to(model.network.device))
        measurements = _measure_plans(model, factors, recipe, joint, progress)
        stored = {"loss": float(losses.mean()), "joint": [astuple(plan) for plan in measurements]}
        keep_value(joint.file, stored)
        interaction = joint.interaction(stored)
    return interaction


def cached_interaction(
    model: LoadedModel, factors: Factorization, recipe: Recipe
) -> Interaction | None:
    """Return the cached result of `measure_interaction`, or None. Raises InputError as it does."""
    joint = _joint(model, factors, recipe)
    return read_as(joint.file, joint.interaction)


@dataclass(frozen=True, eq=False)
class _Joint:
    """The plans and windows of a joint measurement.

    plans: measured on windows tokens [n, t] of the calibration text. target [m, u]: windows of the
    text called `name`, for the loss of the dense model. vocabulary: the size. passes: see
    `Interaction`. file: the cache file.
    """

    plans: list[RankPlan]
    tokens: Tensor
    name: str
    target: Tensor
    vocabulary: int
    passes: tuple[str, str]
    file: Path

    def interaction(self, stored: dict[str, Any]) -> Interaction:
        """Return the interaction from the contents of the file.

        Raises ValueError if they do not belong to these plans.
        """
        guessing = math.log(self.vocabulary)
        target = Target(self.name, float(stored["loss"]), self.target[:, 1:].numel(), guessing)
        measured = tuple(
            JointMeasurement(
                float(summed),
                float(divergence),
                float(rise),
                float(error),
                int(tokens),
                bool(chosen),
            )
            for summed, divergence, rise, error, tokens, chosen in stored["joint"]
        )
        if len(measured) != len(self.plans):
            raise ValueError(stored)
        return Interaction(measured, target, self.passes)


def _joint(model: LoadedModel, factors: Factorization, recipe: Recipe) -> _Joint:
    """Return the measurement for probed factors. Raises InputError if the refit is not possible."""
    plans, tokens = measured_plans(factors, recipe), _measured_windows(factors)
    passages = target_windows(model, recipe)
    name, windows = ("windows of the calibration text", tokens) if passages is None else passages
    passes = (recipe.refit, recipe.calibration_mode)
    ranks = [plan.key[0] for plan in plans]  # the plans have no bits
    refit_inputs = refit_key() if requests_refit(recipe) else ()
    calibration_tokens = factors.calibration.tokens
    is_complete = len(_refit_windows(calibration_tokens)) == len(calibration_tokens)
    limit = () if is_complete else (REFIT_TOKENS,)
    is_anchored = find_method(factors.method).is_anchored and passes[1] == "sequential"
    solver = (factors.method,) if is_anchored else ()  # see `Method.same_factors_as`
    inputs = (passes, ranks, tokens.tolist(), windows.tolist(), *refit_inputs, *limit, *solver)
    file = cache_file("probes", factors, "joint", FORMAT, *inputs)
    vocabulary = model.network.get_output_embeddings().weight.shape[0]
    return _Joint(plans, tokens, name, windows, vocabulary, passes, file)


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of the joint measurement.

    It compresses the plans, measures them and the dense model, and measures the dense loss on the
    target text.
    """
    passes = window_passes(recipe, requests_refit(recipe))
    compressing = len(PLANS) * passes * _refit_windows(factors.calibration.tokens).numel()
    measuring = (len(PLANS) + 1) * _measured_windows(factors).numel()
    return float(compressing + measuring + WINDOWS * recipe.seq_len)


def _refit_windows(tokens: Tensor) -> Tensor:
    """Return the calibration windows [n, t] that the compression of a measured plan uses."""
    return tokens[: max(1, REFIT_TOKENS // tokens.shape[1])]


def _measured_windows(factors: Factorization) -> Tensor:
    """Return the windows [n, t] that the plans are measured on."""
    unseen: Tensor = factors.calibration.unseen_tokens
    seen: Tensor = factors.calibration.tokens[:WINDOWS]
    return unseen if len(unseen) else seen


def measured_plans(factors: Factorization, recipe: Recipe) -> list[RankPlan]:
    """Return the plans of PLANS that the method can reach, by ascending predicted increase."""
    plans: dict[float, RankPlan] = {}
    for policy, ratio in PLANS:
        try:
            plan = allocate(factors, base_recipe(recipe, policy, ratio))
        except InputError:  # the method cannot reach this ratio
            continue
        if plan.summed_increase:
            plans.setdefault(plan.summed_increase, plan)
    return [plan for _, plan in sorted(plans.items())]


def base_recipe(recipe: Recipe, policy: str, ratio: float) -> Recipe:
    """Return a recipe with the same method and passes, and with a different policy and ratio.

    The budget is the method's default, or the budget of the factors.
    """
    is_listed = recipe.budget in find_method(recipe.method).auto_by_budget
    return Recipe(
        budget=recipe.budget if is_listed else "auto",
        method=recipe.method,
        options=recipe.options,
        policy=policy,
        ratio=ratio,
        refit=recipe.refit,
        calibration_mode=recipe.calibration_mode,
    )


def target_windows(model: LoadedModel, recipe: Recipe) -> tuple[str, Tensor] | None:
    """Return name and windows [n, t] of the text that `evaluate` uses, or None.

    The first 32 windows of the recipe's length, of the test split or the held-out tail of a file.
    None if there is no such split, or if the text cannot be read or is too short.
    """
    name = held_out(recipe.data)
    try:
        model.check_length(recipe.seq_len)
        texts = load_texts(name, "test")
        windows = make_windows(texts, model.tokenizer, WINDOWS, recipe.seq_len, "first")
        windows = with_bos(windows, texts, model.tokenizer, recipe.bos)
        model.check_tokens(int(windows.tokens.max()))
    except InputError:
        return None
    return name, windows.tokens


def _measure_plans(
    model: LoadedModel,
    factors: Factorization,
    recipe: Recipe,
    joint: _Joint,
    progress: Progress,
) -> list[JointMeasurement]:
    """Measure the plans; each plan is a unit of work."""
    calibration = factors.calibration
    calibration = replace(calibration, tokens=_refit_windows(calibration.tokens))
    factors = replace(factors, calibration=calibration)
    work = Work("probe", _PlanMeasurement(model, factors, recipe, joint))
    return list(map_units(work, range(len(joint.plans)), progress))


@dataclass(eq=False)
class _PlanMeasurement:
    """The task of measuring a plan, by the index in `joint.plans`."""

    model: LoadedModel
    factors: Factorization
    recipe: Recipe
    joint: _Joint

    @torch.inference_mode()
    def __call__(self, number: int, progress: Progress) -> JointMeasurement:
        plan, tokens = self.joint.plans[number], self.joint.tokens
        divergences, losses = measure_plan(
            self.model, self.factors, plan, self._dense.compared, self.recipe, progress
        )
        rises = losses - self._dense_losses
        error = float(rises.std()) / len(rises) ** 0.5 if len(rises) > 1 else float("inf")
        return JointMeasurement(
            plan.summed_increase or 0.0,
            float(divergences.mean()),
            float(rises.mean()),
            error,
            tokens[:, 1:].numel(),
            plan.by_probes,
        )

    @cached_property
    def _dense(self) -> DensePredictions:
        """The predictions of the dense model; computed once."""
        return DensePredictions(clone(self.model.network), self.joint.tokens)

    @cached_property
    def _dense_losses(self) -> Tensor:
        """The losses of the dense model by window, [n]."""
        return self._dense.losses()
