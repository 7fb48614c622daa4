"""What slots lose together: a few plans of `probed` and a uniform one, compressed as the recipe
does and measured whole, on windows of the calibration text that the moments have not seen.
"""

import math
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...cache import keep_value, read_as
from ...data import held_out
from ...errors import InputError
from ...evaluation.protocols import make_passages
from ...evaluation.settings import EvaluationSettings
from ...methods import find_method
from ...models.layers import clone
from ...models.load import LoadedModel
from ...plan import RankPlan
from ...prediction import Interaction, JointMeasurement, Target
from ...progress import Progress, silent
from ...recipe import Recipe
from ...units import Work, each
from ..allocate import allocate
from ..factorise import Factorisation
from ..refit import refit_key
from ..trained_mlp import PASSES
from ..write import asks_for_refit, written
from .cache import cache_file
from .divergence import DensePredictions
from .losses import WINDOWS, window_losses

FORMAT = 3  # of the files on disk; increase it whenever what is measured changes its meaning
# Policy and ratio of the plans, in the method's own budget
PLANS = (("probed", 0.3), ("probed", 0.5), ("uniform", 0.3))
# Tokens of the calibration windows, at least a window, that pass through a plan that is measured: a
# refit on more of them takes as much longer, and changes what is predicted by little.
REFIT_TOKENS = 2**15
# How often the calibration windows pass through each for one compression, trained MLPs besides
REFIT, SEQUENTIAL, TRAINING = 5, 2, 3 * PASSES


def measure_interaction(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> Interaction:
    """Three compressions and their measurement, of probed factors; kept on disk beside the probes.

    Raises InputError where the recipe's refit cannot be.
    """
    joint = _joint(model, factors, recipe)
    if (known := read_as(joint.file, joint.interaction)) is None:
        losses = window_losses(model.network, joint.target.to(model.network.device))
        measured = _measure(model, factors, recipe, joint, progress)
        kept = {"loss": float(losses.mean()), "joint": [astuple(one) for one in measured]}
        keep_value(joint.file, kept)
        known = joint.interaction(kept)
    return known


def kept_interaction(
    model: LoadedModel, factors: Factorisation, recipe: Recipe
) -> Interaction | None:
    """What `measure_interaction` left on disk, None where it did not. Raises InputError as it
    does.
    """
    joint = _joint(model, factors, recipe)
    return read_as(joint.file, joint.interaction)


@dataclass(frozen=True, eq=False)
class _Joint:
    """What is compressed and measured as a whole.

    plans: on windows tokens [n, t] of the calibration text. The dense model: on windows target
    [m, u] of the text with this name. vocabulary: how many tokens it predicts. passes:
    see `Interaction`. file: where it is kept.
    """

    plans: list[RankPlan]
    tokens: Tensor
    name: str
    target: Tensor
    vocabulary: int
    passes: tuple[str, str]
    file: Path

    def interaction(self, kept: dict[str, Any]) -> Interaction:
        """By what the file holds. Raises ValueError where that is not of these plans."""
        guessing = math.log(self.vocabulary)
        target = Target(self.name, float(kept["loss"]), self.target[:, 1:].numel(), guessing)
        measured = tuple(
            JointMeasurement(
                float(summed),
                float(divergence),
                float(rise),
                float(error),
                int(tokens),
                bool(chosen),
            )
            for summed, divergence, rise, error, tokens, chosen in kept["joint"]
        )
        if len(measured) != len(self.plans):
            raise ValueError(kept)
        return Interaction(measured, target, self.passes)


def _joint(model: LoadedModel, factors: Factorisation, recipe: Recipe) -> _Joint:
    """Of probed factors. Raises InputError where the recipe's refit cannot be."""
    plans, tokens = measured_plans(factors, recipe), _tokens(factors)
    passages = target_windows(model, recipe)
    name, windows = ("windows of the calibration text", tokens) if passages is None else passages
    passes = (recipe.refit, recipe.calibration)
    ranks = [sorted([*slot, rank] for slot, rank in plan.ranks.items()) for plan in plans]
    refits = refit_key(recipe.trains) if asks_for_refit(recipe) else ()
    own = factors.calibration.tokens
    cut = () if len(_passed(own)) == len(own) else (REFIT_TOKENS,)
    inputs = (passes, ranks, tokens.tolist(), windows.tolist(), *refits, *cut)
    file = cache_file("probes", factors, "joint", FORMAT, *inputs)
    vocabulary = model.network.get_output_embeddings().weight.shape[0]
    return _Joint(plans, tokens, name, windows, vocabulary, passes, file)


def tokens_run(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`: compressing the plans, measuring them and the dense model, and the
    dense loss on the target text.
    """
    streams = REFIT * asks_for_refit(recipe) + TRAINING * recipe.trains
    streams += SEQUENTIAL * (recipe.calibration == "sequential")
    compressing = len(PLANS) * streams * _passed(factors.calibration.tokens).numel()
    measuring = (len(PLANS) + 1) * _tokens(factors).numel()
    return float(compressing + measuring + WINDOWS * recipe.seq_len)


def _passed(tokens: Tensor) -> Tensor:
    """Those of the calibration windows [n, t] that pass through a plan as it is compressed."""
    return tokens[: max(1, REFIT_TOKENS // tokens.shape[1])]


def _tokens(factors: Factorisation) -> Tensor:
    """The windows [n, t] that the plans are measured on."""
    aside: Tensor = factors.calibration.aside
    own: Tensor = factors.calibration.tokens[:WINDOWS]
    return aside if len(aside) else own


def measured_plans(factors: Factorisation, recipe: Recipe) -> list[RankPlan]:
    """Those of PLANS that the method can meet, by ascending predicted increase."""
    plans: dict[float, RankPlan] = {}
    for policy, ratio in PLANS:
        try:
            plan = allocate(factors, base_recipe(recipe, policy, ratio))
        except InputError:  # the method cannot save as much
            continue
        if plan.summed_increase:
            plans.setdefault(plan.summed_increase, plan)
    return [plan for _, plan in sorted(plans.items())]


def base_recipe(recipe: Recipe, policy: str, ratio: float) -> Recipe:
    """The recipe with the ranks of a policy alone, at the method's own budget, or that which its
    factors are for.
    """
    own = recipe.budget in find_method(recipe.method).under
    return Recipe(
        budget=recipe.budget if own else "auto",
        method=recipe.method,
        options=recipe.options,
        policy=policy,
        ratio=ratio,
        refit=recipe.refit,
        calibration=recipe.calibration,
    )


def target_windows(model: LoadedModel, recipe: Recipe) -> tuple[str, Tensor] | None:
    """What `evaluate` measures of the test split, or of the tail of a file: its name, and the first
    32 windows of the recipe's length, [n, t]. None where it cannot be read or is too short.
    """
    settings = EvaluationSettings(held_out(recipe.data), WINDOWS, recipe.seq_len)
    try:
        rows = make_passages(model, settings).rows
    except InputError:
        return None
    return settings.data, torch.stack([tokens for tokens, _ in rows])


def _measure(
    model: LoadedModel,
    factors: Factorisation,
    recipe: Recipe,
    whole: _Joint,
    progress: Progress,
) -> list[JointMeasurement]:
    """Every plan, on its tokens; each is a unit of work."""
    seen = factors.calibration
    factors = replace(factors, calibration=replace(seen, tokens=_passed(seen.tokens)))
    work = Work("probe", _Measuring(model, factors, recipe, whole))
    return list(each(work, range(len(whole.plans)), progress))


@dataclass(eq=False)
class _Measuring:
    """The task of measuring one plan, by its number."""

    model: LoadedModel
    factors: Factorisation
    recipe: Recipe
    whole: _Joint

    @torch.inference_mode()
    def __call__(self, number: int, progress: Progress) -> JointMeasurement:
        del progress
        plan, tokens = self.whole.plans[number], self.whole.tokens
        small = written(self.model, self.recipe, self.factors, plan.ranks, silent)
        divergences, losses = self._dense.compared(small)
        rises = losses - self._before
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
        """What the dense model predicts; made once."""
        return DensePredictions(clone(self.model.network), self.whole.tokens)

    @cached_property
    def _before(self) -> Tensor:
        """Its losses by window, [n]."""
        return self._dense.losses()
