"""What made a run: the recipe's method at its ranks, or one that changes the model as a whole
and reads of a recipe only its text.
"""

from collections.abc import Sequence
from typing import Any

from ..history import (
    Compressed,
    ExpertsPruned,
    SharedBases,
    Shortened,
    Sliced,
    Sparsified,
    Step,
    last_step,
)
from ..recipe import Recipe

# What such a method is called, as the command line has it, and the field that says how it chose.
WHOLE: dict[type[Any], tuple[str, str]] = {
    Sliced: ("slice", "rotations"),
    Shortened: ("shorten", "by"),
    ExpertsPruned: ("prune-experts", "by"),
    Sparsified: ("sparsify", "criterion"),
    SharedBases: ("share", "group"),
}
READ = Recipe.fields_of("source", "windows")


def whole(
    history: Sequence[Step],
) -> ExpertsPruned | Sliced | Shortened | Sparsified | SharedBases | None:
    """The step that changed the model as a whole; None where ranks made it."""
    if last_step(history, Compressed) is not None:
        return None
    return next((step for kind in WHOLE if (step := last_step(history, kind)) is not None), None)


def method_and_policy(recipe: Recipe, history: Sequence[Step]) -> tuple[str, str]:
    """The recipe's, or what was done to the whole model and how it was chosen."""
    step = whole(history)
    if step is None:
        return recipe.method, recipe.policy
    method, choice = WHOLE[type(step)]
    return method, str(getattr(step, choice))


def fields(recipe: Recipe, history: Sequence[Step]) -> dict[str, Any]:
    """Field by field what the run was made by; of a recipe whose ranks had no part in it, the
    fields that were read.
    """
    step, values = whole(history), recipe.to_dict()
    if step is None:
        return values
    own = {
        f"{step.kind}: {name}": value
        for name, value in step.fields_dict().items()
        if not isinstance(value, dict) and value is not None and name != WHOLE[type(step)][1]
    }
    named = dict(zip(("method", "policy"), method_and_policy(recipe, history), strict=True))
    return {name: values[name] for name in READ} | named | own
