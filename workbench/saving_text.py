"""What the page says where something of it is taken elsewhere: a link to the plan, a figure with
what it was made of.
"""

from collections.abc import Sequence
from pathlib import Path

import lrcore

from . import text

COPY_LINK = "Copy link"
LINK_HELP = "Copies the address of this page: it opens with this plan, this slot and this tab."
LINK_COPIED = "Link copied"
LINK_NOT_COPIED = "Not copied: take it from the address bar"

SAVE = "Save"
FILES = (  # kind, width in millimetres, label
    ("pdf", "85", "PDF · one column, 85 mm"),
    ("pdf", "178", "PDF · two columns, 178 mm"),
    ("svg", "85", "SVG · one column, 85 mm"),
    ("svg", "178", "SVG · two columns, 178 mm"),
    ("png", "85", "PNG, 300 dpi · 85 mm"),
    ("png", "178", "PNG, 300 dpi · 178 mm"),
    ("csv", "", "CSV · the numbers"),
)
SOURCE = (
    "{model} · calibrated on {data}: {samples} {sampling} windows × {seq_len} tokens, seed {seed}"
)
MEASURED = "{}, measured on {}, calibrated on {}"
PLAN = "{method}, {policy}, {ratio:.1%} of {budget} removed"
INFLUENCE = "Block Influence of every layer"
EVERY_POLICY = "Share kept by each policy, {ratio:.1%} removed"
THRESHOLD = " at {:g} of the energy"
PROBED = "{method}, probed near {ratio:.1%} removed"


def source(recipe: lrcore.Recipe, *before: str) -> str:
    """What a figure was made of: what is to be said `before`, the model, the calibration text."""
    fields = recipe.to_dict()
    fields |= {name: short_name(fields[name]) for name in ("model", "data")}
    return lrcore.without_paths(" · ".join([*before, SOURCE.format(**fields)]))


def measured(model: str, protocol: str, recipes: Sequence[lrcore.Recipe]) -> str:
    """What a comparison of runs was made of: their base, the text measured on, and the texts and
    seeds that they were calibrated with.
    """
    texts: dict[str, set[int]] = {}
    for recipe in recipes:
        texts.setdefault(short_name(recipe.data), set()).add(recipe.seed)
    parts = [
        f"{data}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"
        for data, seeds in texts.items()
    ]
    made = MEASURED.format(short_name(model), protocol, " and ".join(parts))
    return lrcore.without_paths(made)


def short_name(place: str) -> str:
    """Of a file or a folder its name."""
    return Path(place).name if Path(place).is_absolute() else place


def plan_source(recipe: lrcore.Recipe, budget: str) -> str:
    """The same after the method, the policy and the budget, named by what it counts."""
    fields = recipe.to_dict() | {"budget": text.budget(budget)}
    return source(recipe, PLAN.format(**fields))


def kind(name: str) -> str:
    """What singular values are of, as in the middle of a sentence."""
    return next(label for label, own in text.KINDS.items() if own == name).lower()


def of_recipe(recipe: lrcore.Recipe, sentence: str) -> str:
    """The same after a sentence with fields of the recipe in it."""
    return source(recipe, sentence.format(**recipe.to_dict()))
