"""What each heavy object on the shelf depends on: its key there."""

import lrcore

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
