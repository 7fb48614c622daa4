"""What each heavy object on the shelf depends on: its key there."""

import lrcore

from .form import PLANNED

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
        *measures(recipe),
    )


def measures(recipe: lrcore.Recipe) -> Key:
    """What the recipe's policy measures on the model: nothing, probes or gradients that serve
    every budget, or a search at its own.
    """
    row = next(row for row in lrcore.policies() if row["name"] == recipe.policy)
    if row["searched"]:
        return ("searched", *(str(getattr(recipe, name)) for name in PLANNED))
    return tuple(name for name in ("probed", "gradients") if row[name])
