"""What each heavy object depends on: its key in the object cache."""

from collections.abc import Sequence
from typing import Any

import lrcore

MODEL = lrcore.Recipe.fields_of("source")
WINDOWS = lrcore.Recipe.fields_of("windows")
PLANNED = lrcore.Recipe.fields_of("plan")  # what a search for a plan depends on
DEFAULTS = lrcore.Recipe()
UNIFORM = DEFAULTS.policy

Key = tuple


def model_key(recipe: lrcore.Recipe) -> Key:
    return tuple(getattr(recipe, name) for name in MODEL)


def calibration_key(recipe: lrcore.Recipe) -> Key:
    return (*model_key(recipe), *(getattr(recipe, name) for name in WINDOWS))


def calibrated(key: Sequence[Any]) -> lrcore.Recipe:
    """The recipe of a calibration key, every other field at its default."""
    return DEFAULTS.with_(**dict(zip((*MODEL, *WINDOWS), key, strict=True)))


def factor_key(recipe: lrcore.Recipe) -> Key:
    return (
        *calibration_key(recipe),
        recipe.method,
        *sorted(lrcore.method_options(recipe).items()),
        *lrcore.evidence_key(recipe),
    )


def plan_key(base: lrcore.Recipe, recipe: lrcore.Recipe) -> Key:
    """base: the recipe whose factors the plan is made from."""
    return factor_key(base), recipe.to_json()


def policy_row(recipe: lrcore.Recipe) -> dict[str, Any]:
    """What is known of the recipe's policy: a row of `lrcore.policies`."""
    return next(row for row in lrcore.policies() if row["name"] == recipe.policy)


def analysed(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The recipe with every field at its default that the analysis and the factors do not depend
    on; a policy and a budget only count if they measure.
    """
    own = PLANNED if policy_row(recipe)["one_budget"] else ("budget",) if timed(recipe) else ()
    names = [*MODEL, *WINDOWS, "method", *own]
    kept = {name: getattr(recipe, name) for name in names}
    kept["options"] = lrcore.method_options(recipe)  # a budget may bring some
    measures = lrcore.evidence_key(recipe.with_(budget=DEFAULTS.budget))
    return DEFAULTS.with_(**kept, policy=recipe.policy if measures else UNIFORM)


def timed(recipe: lrcore.Recipe) -> bool:
    """Whether its budget counts measured time."""
    return recipe.budget == "latency"


def unmeasured(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The same by a policy and a budget that measure nothing on the model."""
    return even(recipe).with_(budget=DEFAULTS.budget) if timed(recipe) else even(recipe)


def by_probes(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The recipe whose factors have the probes of a method."""
    return unmeasured(recipe).with_(policy="probed")


def even(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The same budget shared evenly."""
    return recipe.with_(policy=UNIFORM, policy_options={})


def uniform(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The same budget shared evenly, with nothing set by hand."""
    return even(recipe).with_(overrides={})
