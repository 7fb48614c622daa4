"""Evidence "type_weights": what share every type of matrix keeps, beside the others, by Bayesian
optimisation of the loss of calibration tokens (Bolaco).

A Gaussian process is fitted to the losses of the plans so far, and the next plan is the one of
largest expected improvement (Optuna's GPSampler). The first plan has equal shares.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...cache import keep_value, read_as
from ...errors import InputError
from ...models.load import LoadedModel
from ...policies import find_policy
from ...policies.bolaco import slot_types
from ...progress import Progress
from ...recipe import Recipe
from ..allocate import allocation_key
from ..factorise import Factorisation
from .cache import cache_file
from .kind import EvidenceKind
from .losses import LENGTH, WINDOWS
from .search import plan_loss

RUNS, FIRST = 50, 10  # plans in all, as published; of them at random
LEAST = 0.2  # weight of a type against the largest, as published
Weights = dict[str, float]  # by type


def measure(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress
) -> Weights:
    """The weights of the types, each in [LEAST, 1], whose plan at the recipe's budget loses least.

    RUNS evaluations of the first 32 calibration windows, cut to 128 tokens; kept on disk under a
    key of the calibration, the method, its options and the whole recipe. Raises InputError without
    Optuna.
    """
    path = _file(factors, recipe)
    types = _types(factors, recipe)
    kept = read_as(path, lambda value: {name: float(value[name]) for name in types})
    if kept is not None:
        return kept
    loss = plan_loss(model, factors, recipe, "type_weights")
    weights = best_weights(types, loss, progress)
    keep_value(path, weights)
    return weights


def best_weights(
    types: Sequence[str], loss: Callable[[Weights], float], progress: Progress
) -> Weights:
    """The weights of least loss among those that are tried, equal ones included."""
    optuna = _optuna()
    sampler = optuna.samplers.GPSampler(seed=0, n_startup_trials=FIRST)
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict.fromkeys(types, 1.0))
    for number in range(RUNS):
        progress("search", number, RUNS)
        trial = study.ask()
        weights = {name: trial.suggest_float(name, LEAST, 1.0) for name in types}
        study.tell(trial, loss(weights))
    progress("search", RUNS, RUNS)
    return dict(study.best_params)


def _optuna() -> Any:
    """Optuna, which says nothing of its own."""
    try:
        import optuna
        import scipy  # noqa: F401  # GPSampler imports it when it first samples
    except ImportError as error:
        raise InputError(
            "Policy 'bolaco' searches by Optuna and SciPy, which are not installed: pip install -r "
            "requirements-search.txt, or choose a policy without a search for types, such as mix "
            "or probed."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _types(factors: Factorisation, recipe: Recipe) -> list[str]:
    options: Any = find_policy("bolaco").choose(recipe.policy_options)
    return sorted(set(slot_types(factors.spectra, options.groups).values()))


def tokens_run(factors: Factorisation, recipe: Recipe) -> float:
    """See `EvidenceKind.tokens`."""
    if _file(factors, recipe).exists():
        return 0.0
    return float(factors.calibration.tokens[:WINDOWS, :LENGTH].numel() * RUNS)


def _file(factors: Factorisation, recipe: Recipe) -> Path:
    sizes = (RUNS, FIRST, LEAST, WINDOWS, LENGTH)
    return cache_file("type_searches", factors, allocation_key(recipe), *sizes)


KIND = EvidenceKind(
    "type_weights",
    "Share of every type of matrix, beside the others, that loses least at one budget; 50 short "
    "evaluations by Bayesian optimisation, kept on disk.",
    measure,
    one_budget=True,
    tokens=tokens_run,
)
