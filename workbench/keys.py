"""What each heavy object depends on: its key in the object cache."""

import lrcore

MODEL = lrcore.Recipe.fields_of("source")
WINDOWS = lrcore.Recipe.fields_of("windows")
PLANNED = lrcore.Recipe.fields_of("plan")  # what a search for a plan depends on
START = lrcore.Recipe()
UNIFORM = START.policy

Key = tuple


def model_key(recipe: lrcore.Recipe) -> Key:
    return tuple(getattr(recipe, name) for name in MODEL)


def calibration_key(recipe: lrcore.Recipe) -> Key:
    return (*model_key(recipe), *(getattr(recipe, name) for name in WINDOWS))


def factor_key(recipe: lrcore.Recipe) -> Key:
    return (
        *calibration_key(recipe),
        recipe.method,
        *sorted(recipe.options.items()),
        *lrcore.evidence_key(recipe),
    )


def analysed(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The recipe with every field at its default that the analysis and the factors do not depend
    on; a policy only counts if it measures.
    """
    row = next(row for row in lrcore.policies() if row["name"] == recipe.policy)
    names = [*MODEL, *WINDOWS, "method", "options", *(PLANNED if row["one_budget"] else ())]
    kept = {name: getattr(recipe, name) for name in names}
    return START.with_(**kept, policy=recipe.policy if lrcore.evidence_key(recipe) else UNIFORM)


def uniform(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The same budget shared evenly, with nothing set by hand."""
    return recipe.with_(policy=UNIFORM, policy_options={}, overrides={})
