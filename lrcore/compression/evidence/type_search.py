"""Evidence "type_weights": the share of each matrix type relative to the largest, for Bolaco.

Bayesian optimization of the loss of calibration tokens: a Gaussian process is fitted to the losses
of the plans so far, and the next plan has the largest expected improvement (Optuna's GPSampler).
The first plan has equal shares.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...models.load import LoadedModel
from ...ranks.policies import find_policy
from ...ranks.policies.bolaco import slot_types
from ...recipes.recipe import Recipe
from ...system.cache import keep_value, read_as
from ...system.errors import InputError
from ...system.progress import Progress
from ..solve.allocate import allocation_key
from ..solve.factorize import Factorization
from .kind import EvidenceKind, cache_file
from .losses import LENGTH, WINDOWS
from .search import plan_loss

RUNS, RANDOM_RUNS = 50, 10  # number of plans, as published; the first ones are random
MIN_WEIGHT = 0.2  # of a type, relative to the largest, as published
Weights = dict[str, float]  # by type


def measure(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Weights:
    """Return the weights of the types, each in [MIN_WEIGHT, 1], with the least loss.

    RUNS evaluations of the first 32 calibration windows, shortened to 128 tokens, at the recipe's
    budget. The result is cached on disk; the key covers the calibration, the method, the options
    and the recipe. Raises InputError if Optuna is not installed.
    """
    path = _file(factors, recipe)
    types = _types(factors, recipe)
    cached = read_as(path, lambda value: {name: float(value[name]) for name in types})
    if cached is not None:
        return cached
    loss = plan_loss(model, factors, recipe, "type_weights")
    weights = best_weights(types, loss, progress)
    keep_value(path, weights)
    return weights


def best_weights(
    types: Sequence[str], loss: Callable[[Weights], float], progress: Progress
) -> Weights:
    """Return the weights of least loss among those that are tried, including equal weights."""
    optuna = _optuna()
    sampler = optuna.samplers.GPSampler(seed=0, n_startup_trials=RANDOM_RUNS)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict.fromkeys(types, 1.0))
    for number in range(RUNS):
        progress("search", number, RUNS)
        trial = study.ask()
        weights = {name: trial.suggest_float(name, MIN_WEIGHT, 1.0) for name in types}
        study.tell(trial, loss(weights))
    progress("search", RUNS, RUNS)
    return dict(study.best_params)


def _optuna() -> Any:
    """Return the module optuna, with logging disabled."""
    try:
        import optuna
        import scipy  # noqa: F401  # GPSampler imports it when it first samples
    except ImportError as error:
        raise InputError(
            "Policy 'bolaco' needs Optuna and SciPy, which are not installed: pip install -r "
            "requirements-search.txt, or choose a policy without this search, such as mix or "
            "probed."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _types(factors: Factorization, recipe: Recipe) -> list[str]:
    options: Any = find_policy("bolaco").choose(recipe.policy_options)
    return sorted(set(slot_types(factors.spectra, options.groups).values()))


def tokens_run(factors: Factorization, recipe: Recipe) -> float:
    """Return `EvidenceKind.tokens` of the search."""
    if _file(factors, recipe).exists():
        return 0.0
    return float(factors.calibration.tokens[:WINDOWS, :LENGTH].numel() * RUNS)


def _file(factors: Factorization, recipe: Recipe) -> Path:
    sizes = (RUNS, RANDOM_RUNS, MIN_WEIGHT, WINDOWS, LENGTH)
    return cache_file("type_searches", factors, allocation_key(recipe), *sizes)


KIND = EvidenceKind(
    "type_weights",
    "Relative share of every matrix type at one budget; 50 short evaluations chosen by Bayesian "
    "optimization, cached on disk.",
    measure,
    one_budget=True,
    tokens=tokens_run,
)
