"""The kinds of evidence that a policy may need, one row each, and measuring them.

The core, the page and the error messages read in this table what a policy measures.
"""

from ...models.load import LoadedModel
from ...policies import find_policy
from ...progress import Progress, silent
from ...recipe import Recipe
from ..factorise import Factorisation
from . import angles, gradients, latency, probes, search, slopes, type_search
from .kind import EvidenceKind

EVIDENCE: dict[str, EvidenceKind] = {
    row.name: row
    for row in (
        EvidenceKind("spectra", "Loss curve and cost of every slot; comes with the factors."),
        EvidenceKind("influence", "Influence of every layer; comes with the calibration."),
        EvidenceKind("outliers", "Outlier ratios of every layer; counted with the factors."),
        angles.KIND,
        probes.KIND,
        gradients.KIND,
        slopes.KIND,
        search.KIND,
        type_search.KIND,
        latency.KIND,
    )
}


def evidence_of(policy: str) -> EvidenceKind:
    """The kind of evidence that a policy needs. Raises InputError for an unknown policy."""
    return EVIDENCE[find_policy(policy).needs]


def _kinds(recipe: Recipe) -> tuple[EvidenceKind, ...]:
    """What a recipe needs, in the order in which it is measured: for its budget, for its policy."""
    own = evidence_of(recipe.policy)
    return (latency.KIND, own) if recipe.budget == "latency" else (own,)


def evidence_key(recipe: Recipe) -> tuple[str, ...]:
    """What a recipe measures on the model, as a key: the names of the evidence, and the budget
    where one of them holds for one only; empty where it measures nothing.

    Raises InputError for an unknown policy.
    """
    return tuple(part for kind in _kinds(recipe) for part in kind.key(recipe))


def evidence_tokens(factors: Factorisation, recipe: Recipe) -> float:
    """How many tokens have to run through the whole model until the evidence that the recipe needs
    is measured; 0 where it is there, or on disk. Times `seconds_per_token` it says about how long
    that takes.

    Raises InputError for an unknown policy.
    """
    return sum(
        kind.tokens(factors, recipe)
        for kind in _kinds(recipe)
        if kind.tokens and not factors.evidence.has(kind.name, kind.budget(recipe))
    )


def measure_evidence(
    model: LoadedModel, factors: Factorisation, recipe: Recipe, progress: Progress | None = None
) -> Factorisation:
    """The factorisation with the evidence that the recipe's budget and policy need, measured on the
    model unless it is there already; then the factorisation is returned as it is.

    Raises InputError for an unknown policy, and what measuring raises.
    """
    for kind in _kinds(recipe):
        budget = kind.budget(recipe)
        if kind.measure is not None and not factors.evidence.has(kind.name, budget):
            value = kind.measure(model, factors, recipe, progress or silent)
            factors = factors.with_measurement(kind.name, value, budget)
    return factors


def with_kept_probes(model: LoadedModel, factors: Factorisation, recipe: Recipe) -> Factorisation:
    """The factorisation with the probes that an earlier recipe left on disk, so that plans of a
    policy that needs none are predicted as well; as it is where there are none. Measures nothing.
    """
    if factors.evidence.has("probes"):
        return factors
    value = probes.kept(model, factors, recipe)
    return factors if value is None else factors.with_measurement("probes", value)
