"""Table of the kinds of evidence, and their measurement for a recipe.

The core, the page and error messages read in this table what a policy needs.
"""

from ...models.load import LoadedModel
from ...ranks.policies import find_policy
from ...recipes.recipe import Recipe
from ...system.progress import Progress, silent
from ..solve.factorize import Factorization
from . import error_model, latency, probes, quantization, search, type_search
from .calibration_evidence import ANGLES, GRADIENTS, SLOPES
from .kind import EvidenceKind, Measure

EVIDENCE: dict[str, EvidenceKind] = {
    row.name: row
    for row in (
        EvidenceKind("spectra", "Loss curve and cost of every slot; comes with the factors."),
        EvidenceKind("influence", "Influence of every layer; comes with the calibration."),
        EvidenceKind("outliers", "Outlier ratios of every layer; counted with the factors."),
        ANGLES,
        probes.KIND,
        GRADIENTS,
        SLOPES,
        search.KIND,
        type_search.KIND,
        error_model.KIND,
        latency.KIND,
        quantization.KIND,
    )
}


def evidence_of(policy: str) -> EvidenceKind:
    """Return the kind of evidence that a policy needs. Raises InputError for an unknown policy."""
    return EVIDENCE[find_policy(policy).needs]


def _kinds(recipe: Recipe) -> tuple[EvidenceKind, ...]:
    """Return the kinds that a recipe needs, in the order of measurement."""
    kind = evidence_of(recipe.policy)
    if recipe.budget == "bytes":
        return tuple(dict.fromkeys((probes.KIND, quantization.KIND, kind)))
    return (latency.KIND, kind) if recipe.budget == "latency" else (kind,)


def evidence_key(recipe: Recipe) -> tuple[str, ...]:
    """Return the key of the measurements that a recipe needs; empty if it needs none.

    It has the names of the evidence, and the budget of evidence that is valid for a single budget.
    Raises InputError for an unknown policy.
    """
    return tuple(part for kind in _kinds(recipe) for part in kind.key(recipe))


def evidence_tokens(factors: Factorization, recipe: Recipe) -> float:
    """Return how many tokens must run through the complete model to measure a recipe's evidence.

    0 if the evidence is measured or cached. Multiplied by `seconds_per_token` it gives the
    approximate time. Raises InputError for an unknown policy.
    """
    return sum(
        kind.tokens(factors, recipe)
        for kind in _kinds(recipe)
        if kind.tokens and not factors.evidence.has(kind.name, kind.budget(recipe))
    )


def measure_evidence(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress | None = None
) -> Factorization:
    """Return the factorization with the evidence that the recipe's budget and policy need.

    Evidence that the factorization has is not measured again. Raises InputError for an unknown
    policy, and the errors of the measurements.
    """
    for kind in _kinds(recipe):
        factors = _with_evidence(model, factors, recipe, (kind, kind.measure), progress or silent)
    return factors


def measure_for_ranks(
    model: LoadedModel, factors: Factorization, recipe: Recipe, progress: Progress
) -> Factorization:
    """Return the result of `measure_evidence` without what only predictions need."""
    for kind in _kinds(recipe):
        measure = kind.measure_for_ranks or kind.measure
        factors = _with_evidence(model, factors, recipe, (kind, measure), progress)
    return factors


def _with_evidence(
    model: LoadedModel,
    factors: Factorization,
    recipe: Recipe,
    measured: tuple[EvidenceKind, Measure | None],
    progress: Progress,
) -> Factorization:
    kind, measure = measured
    budget = kind.budget(recipe)
    if measure is None or factors.evidence.has(kind.name, budget):
        return factors
    value = measure(model, factors, recipe, progress)
    return factors.with_measurement(kind.name, value, budget)


def with_cached_probes(model: LoadedModel, factors: Factorization, recipe: Recipe) -> Factorization:
    """Return the factorization with probes of an earlier recipe, if they are cached.

    With them the plans of a policy without probes are predicted as well. Runs no measurement.
    """
    if factors.evidence.has("probes"):
        return factors
    value = probes.cached_probes(model, factors, recipe)
    return factors if value is None else factors.with_measurement("probes", value)
