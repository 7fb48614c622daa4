"""Sentences in the lists of methods and policies, which `assets/pickers.js` adds to their entries.

The browser gets the description of each entry with the page, and measurements later.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import lrcore
from lrcore.system.as_json import json_text

from .. import words
from ..base import numbers
from ..state.quality import Quality, nearest


def entries() -> dict[str, dict[str, Any]]:
    """Return {element id of a list: {"about": {name: sentence}, "recommended": names}}."""
    return {
        f"field-{field}": {"about": words.pickers.summaries(field), "recommended": recommended}
        for field, recommended in words.pickers.RECOMMENDED.items()
    }


def measured(qualities: Sequence[Quality], recipe: lrcore.Recipe) -> str:
    """Return hidden HTML with the measurement of each method, and of each policy with the method of
    the recipe, at the size nearest to the recipe's.
    """
    of_method = [quality for quality in qualities if quality.method == recipe.method]
    lists = {
        "field-method": nearest_sentences(
            words.pickers.MEASURED_METHOD, "method", qualities, recipe.ratio
        ),
        "field-policy": nearest_sentences(
            words.pickers.MEASURED_POLICY, "policy", of_method, recipe.ratio
        ),
    }
    return f"<div id='measured-choices' hidden data-lists='{escape(json_text(lists))}'></div>"


def nearest_sentences(
    template: str, field: str, qualities: Sequence[Quality], ratio: float
) -> dict[str, str]:
    """Return a sentence by name. field: "method" or "policy"."""
    names = {getattr(quality, field) for quality in qualities}
    sentences = {}
    for name in sorted(names):
        quality = nearest([q for q in qualities if getattr(q, field) == name], ratio)
        if quality is not None:
            sentences[name] = template.format(
                method=quality.method,
                policy=quality.policy,
                change=numbers.relative_change(quality.change),
                removed=numbers.percent(quality.removed),
                budget=words.allocation.budget(quality.budget),
            )
    return sentences
