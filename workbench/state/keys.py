"""Keys of the object cache, and recipes reduced to the fields that an object depends on."""

from collections.abc import Sequence
from typing import Any

import lrcore
from lrcore.compression.evidence.measure import evidence_key
from lrcore.compression.solve.factorize import method_options

MODEL = lrcore.Recipe.fields_of("source")
WINDOWS = lrcore.Recipe.fields_of("windows")
PLANNED = lrcore.Recipe.fields_of("plan")  # fields that a search for a plan depends on
DEFAULTS = lrcore.Recipe()
UNIFORM, PROBED = DEFAULTS.policy, "probed"
BYTES = "bytes"  # the budget that also chooses bits

Key = tuple


def model_key(recipe: lrcore.Recipe) -> Key:
    return tuple(getattr(recipe, name) for name in MODEL)


def calibration_key(recipe: lrcore.Recipe) -> Key:
    return (*model_key(recipe), *(getattr(recipe, name) for name in WINDOWS))


def recipe_of_key(key: Sequence[Any]) -> lrcore.Recipe:
    """Return the recipe of a calibration key, with defaults for the other fields."""
    return DEFAULTS.with_(**dict(zip((*MODEL, *WINDOWS), key, strict=True)))


def factor_key(recipe: lrcore.Recipe) -> Key:
    return (
        *calibration_key(recipe),
        recipe.method,
        *sorted(method_options(recipe).items()),
        *evidence_key(recipe),
    )


def plan_key(base: lrcore.Recipe, recipe: lrcore.Recipe) -> Key:
    """Return the key of a plan. base: the recipe of the factors."""
    return factor_key(base), recipe.to_json()


def policy_row(recipe: lrcore.Recipe) -> dict[str, Any]:
    """Return the row of the recipe's policy in `lrcore.list_policies`."""
    return next(row for row in lrcore.list_policies() if row["name"] == recipe.policy)


def analysis_recipe(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """Return the recipe with defaults for all fields that analysis and factors do not depend on.

    They depend on the policy and the budget only if these need measurements.
    """
    if policy_row(recipe)["one_budget"]:
        plan_fields = PLANNED
    else:
        plan_fields = ("budget",) if has_measured_budget(recipe) else ()
    names = [*MODEL, *WINDOWS, "method", *plan_fields]
    values = {name: getattr(recipe, name) for name in names}
    values["options"] = method_options(recipe)  # may depend on the budget
    needs_evidence = evidence_key(recipe.with_(budget=DEFAULTS.budget))
    return DEFAULTS.with_(**values, policy=recipe.policy if needs_evidence else UNIFORM)


def has_measured_budget(recipe: lrcore.Recipe) -> bool:
    """Return True if the budget needs measurements: of time, or of quantized slots."""
    return recipe.budget in ("latency", BYTES)


def without_measurements(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """Return the recipe with a policy and a budget that need no measurements on the model."""
    uniform = with_uniform_policy(recipe)
    return uniform.with_(budget=DEFAULTS.budget) if has_measured_budget(recipe) else uniform


def probed_recipe(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """Return the recipe whose factors include the probes of the method."""
    return without_measurements(recipe).with_(policy=PROBED)


def predicted_recipe(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """Return the recipe whose factors predict the loss of every size in the recipe's budget.

    They include the probes, and the measurements that the budget needs.
    """
    return recipe.with_(policy=PROBED, policy_options={})


def with_uniform_policy(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """Return the recipe with the uniform policy, and with its manual ranks."""
    return recipe.with_(policy=UNIFORM, policy_options={})


def with_uniform_ranks(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """Return the recipe with the uniform policy, without manual ranks."""
    return with_uniform_policy(recipe).with_(rank_overrides={})
