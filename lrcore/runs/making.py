"""What made a run: the recipe's method at its ranks, or one that changes the model as a whole
and reads of a recipe only its text.
"""

from collections.abc import Mapping
from typing import Any

from ..recipe import Recipe

# The entry of a report that such a method leaves: the word for it, as the command line has it, and
# the field that says how it chose.
WHOLE = {"sliced": ("slice", "rotations"), "shortened": ("shorten", "by")}
READ = (
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


def whole(report: Mapping[str, Any]) -> str:
    """The entry of WHOLE that a report has; "" where ranks made the model."""
    return "" if "recipe" in report else next((entry for entry in WHOLE if entry in report), "")


def method_and_policy(recipe: Recipe, report: Mapping[str, Any]) -> tuple[str, str]:
    """The recipe's, or the word for what was done to the whole model and how it was chosen."""
    entry = whole(report)
    if not entry:
        return recipe.method, recipe.policy
    word, choice = WHOLE[entry]
    return word, report[entry][choice]


def fields(recipe: Recipe, report: Mapping[str, Any]) -> dict[str, Any]:
    """Field by field what the run was made by; of a recipe whose ranks had no part in it, the
    fields that were read.
    """
    entry, said = whole(report), recipe.to_dict()
    if not entry:
        return said
    own = {
        name: value
        for name, value in report[entry].items()
        if not isinstance(value, dict) and name != WHOLE[entry][1]
    }
    named = dict(zip(("method", "policy"), method_and_policy(recipe, report), strict=True))
    return (
        {name: said[name] for name in READ}
        | named
        | {f"{entry}: {name}": value for name, value in own.items()}
    )
