"""Evidence "error_model": the loss of each slot at one rank, and how errors grow with depth (LEMS).

Each slot is truncated once, to about a tenth of its price, as in the released code of LEMS. Then
ten plans of policy `lems`, each with another growth of errors with depth, are measured completely;
the plan with the least divergence from the dense model determines the growth.

From the released code: the reference rank, the ranges of alpha and gamma, and the number of plans.
Its sampler draws the first ten points at random, and there are only ten, so here they are a grid
with equal distances, and the model without growth. The code measures 32 windows of 2048 tokens of
the calibration text, from the 256th token on, with logits divided by 0.6; here both measurements
are those of the policy `probed`: 32 windows of 128 tokens that the moments have not seen, and other
windows for the plans, with the logits as they are.
"""

import math
from itertools import product
from pathlib import Path

import torch

from ...layers.spectra import Slot
from ...models.layers import clone
from ...models.load import LoadedModel
from ...ranks.evidence import ErrorModel, Probe
from ...recipes.recipe import Recipe
from ...system.cache import keep_value, read_as
from ...system.progress import Progress
from ..solve.allocate import allocate, allocation_key
from ..solve.factorize import Factorization
from .divergence import DensePredictions
from .kind import EvidenceKind, cache_file
from .layer_probes import Shares, probe_key
from .plan_loss import measure_plan
from .probe_windows import select_windows
from .probes import measure_divergences, probing_tokens

FORMAT = 1  # of the files on disk; increase it when the meaning of the contents changes
REFERENCE = Shares((0.1,))
ALPHAS, GAMMAS = (0.0, 1.5, 3.0), (7 / 3, 14 / 3, 7.0)
GROWTHS = ((0.0, 0.0), *product(ALPHAS, GAMMAS))  # alpha and gamma of the ten plans


def measure(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> ErrorModel:
    """Return the error model of the recipe's budget.

    A short evaluation per slot, valid for all budgets, and ten complete plans at the recipe's
    budget, truncated without a refit. Both are cached on disk.
    """
    windows = select_windows(factors.calibration)
    _, points = measure_divergences(model, factors, windows.probing, progress, REFERENCE)
    references = {slot: probes[0] for slot, probes in points.items() if probes}
    path = _file(factors, recipe)
    divergences = read_as(path, _to_divergences)
    if divergences is None:
        divergences = _measure_plans(model, factors, recipe, references, progress)
        keep_value(path, divergences)
    _, (alpha, gamma) = min(zip(divergences, GROWTHS, strict=True))
    return ErrorModel(references, len(factors.layers), alpha, gamma)


@torch.inference_mode()
def _measure_plans(
    model: LoadedModel,
    factors: Factorization,
    recipe: Recipe,
    references: dict[Slot, Probe],
    progress: Progress,
) -> list[float]:
    """Return the mean divergence of the plan of each growth from the dense model, nats/token."""
    budget, tokens = allocation_key(recipe), select_windows(factors.calibration).checking
    dense = DensePredictions(clone(model.network), tokens)
    divergences: list[float] = []
    for number, (alpha, gamma) in enumerate(GROWTHS):
        progress("search", number, len(GROWTHS))
        tried = ErrorModel(references, len(factors.layers), alpha, gamma)
        plan = allocate(factors.with_measurement("error_model", tried, budget), recipe)
        divergence, _ = measure_plan(model, factors, plan, dense.compared)
        divergences.append(float(divergence.mean()))
    progress("search", len(GROWTHS), len(GROWTHS))
    return divergences


def _to_divergences(stored: list[float]) -> list[float]:
    """Return the contents of a file. Raises ValueError if they are not finite or too few."""
    divergences = [float(divergence) for divergence in stored]
    if len(divergences) != len(GROWTHS) or not all(map(math.isfinite, divergences)):
        raise ValueError(stored)
    return divergences


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of the error model."""
    tokens = probing_tokens(factors, REFERENCE)
    if not _file(factors, recipe).exists():
        # the dense model runs once
        tokens += (len(GROWTHS) + 1) * select_windows(factors.calibration).checking.numel()
    return tokens


def _file(factors: Factorization, recipe: Recipe) -> Path:
    windows = select_windows(factors.calibration)
    probed = probe_key(factors, windows.probing, REFERENCE)
    plans = (allocation_key(recipe), GROWTHS, windows.checking.tolist())
    return cache_file("searches", factors, "error model", FORMAT, *plans, *probed)


KIND = EvidenceKind(
    "error_model",
    "Increase in loss of every slot at one rank, and its growth with depth at one budget; a short "
    "evaluation per slot and ten complete plans, cached on disk.",
    measure,
    one_budget=True,
    tokens=tokens_run,
)
