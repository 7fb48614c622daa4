"""How the Allocation tab shows every method and policy at the budget on show."""

from typing import Any

import gradio as gr

import lrcore

from ... import markup, saving_text, text
from ...figures.allocation import policy_curves
from ...figures.base import captioned
from ...store import Store
from ...survey import measurements, survey


def surveyed(store: Store, recipe: lrcore.Recipe | None) -> tuple[Any, str]:
    """The curves of the shares that each policy keeps, and what is not shown in them. Until there
    are factors the curves of before stay, dimmed.
    """
    values = survey(store, recipe)
    notes = [text.SURVEY_CONCLUDE] if values.shares else []
    notes += [text.SURVEY_MISSING.format(", ".join(values.missing))] if values.missing else []
    notes += [text.SURVEY_REFUSED.format(", ".join(values.refused))] if values.refused else []
    waits = recipe is not None and recipe.method in values.missing
    figure = gr.skip() if waits else ""
    if recipe and values.shares:
        caption = saving_text.of_recipe(recipe, saving_text.EVERY_POLICY)
        figure = captioned(policy_curves(values.shares, recipe.policy), caption)
    return figure, markup.note(" ".join(notes))


def ranking(store: Store, recipe: lrcore.Recipe | None) -> str:
    """The measured perplexities at this budget as a table, lowest first."""
    rows = measurements(store, recipe)
    return markup.ranking([one[:5] for one in rows], all(one.held_out for one in rows))
