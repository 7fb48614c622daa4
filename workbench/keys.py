"""What each heavy object depends on: its key in the object cache."""

import lrcore

SOURCES = (
    "model",
    "revision",
    "dtype",
    "device",
    "offload",
    "data",
    "samples",
    "seq_len",
    "sampling",
    "seed",
)
PLANNED = (
    "ratio",
    "budget",
    "rounding",
    "multiple",
    "component_ratios",
    "overrides",
)  # what a search for a plan depends on
START = lrcore.Recipe()
UNIFORM = START.policy

Key = tuple


def model_key(recipe: lrcore.Recipe) -> Key:
    return (recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.offload)


def calibration_key(recipe: lrcore.Recipe) -> Key:
    return (
        *model_key(recipe),
        recipe.data,
        recipe.samples,
        recipe.seq_len,
        recipe.sampling,
        recipe.seed,
    )


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
    names = [*SOURCES, "method", "options", *(PLANNED if row["one_budget"] else ())]
    kept = {name: getattr(recipe, name) for name in names}
    return START.with_(**kept, policy=recipe.policy if lrcore.evidence_key(recipe) else UNIFORM)


def uniform(recipe: lrcore.Recipe) -> lrcore.Recipe:
    """The same budget shared evenly, with nothing set by hand."""
    return recipe.with_(policy=UNIFORM, policy_options={}, overrides={})
