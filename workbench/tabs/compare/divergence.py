"""Answers of runs, marked where they differ from the dense model's."""

from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from typing import Any

import lrcore
from lrcore.evaluation.evaluate import token_losses
from lrcore.runs.runs import Run

from ... import words
from ...state import continuation
from ...state.keys import model_key
from ...state.store import Store
from ...views import answer_markup, markup
from ...widgets.form import MAPPINGS
from .chosen_runs import dense_recipe

NO_ANSWERS = markup.note(words.compare_and_runs.NO_ANSWERS, "hint")
FORM_VALUES = 1 + len(MAPPINGS)  # number of a listener's arguments for the form
Tokens = list[tuple[str, float]]  # with their losses, nats


def diverge(store: Store, prompt: str, ids: Sequence[str], *values: Any) -> str:
    """Return the marked answer of each selected run.

    values: texts of the columns, the dense model's first; then the form.
    """
    runs = store.runs_by_id(ids)
    texts, form = values[: len(runs) + 1], values[-FORM_VALUES:]
    if not runs or not all(text and text != prompt for text in texts):
        return NO_ANSWERS
    marked = marked_answers(store, runs, dense_recipe(store, ids, form), prompt, texts)
    return marked + answer_markup.scale(words.compare_and_runs.ANSWER_SCALE)


def marked_answers(
    store: Store,
    runs: Sequence[Run],
    recipe: lrcore.Recipe,
    prompt: str,
    texts: Sequence[str],
) -> str:
    """Return the marked answer of each run.

    recipe: names the dense model. texts: prompt and answer of the dense model, then of each run.
    """

    @cache
    def dense_tokens() -> Tokens:
        return token_losses(store.dense(recipe), texts[0])

    answers = []
    for run, text in zip(runs, texts[1:], strict=True):
        has_same_base = model_key(run.recipe) == model_key(recipe)
        answers.append(
            marked_answer(store, run, prompt, text, dense_tokens if has_same_base else None)
        )
    return "".join(answers)


def marked_answer(
    store: Store, run: Run, prompt: str, text: str, dense_tokens: Callable[[], Tokens] | None
) -> str:
    """Return the answer of a run, token by token.

    dense_tokens: returns the tokens of the dense model's answer; None if the run was made from a
    different model.
    """
    title = f"<h4>{escape(run.name)}</h4>"
    try:
        dense = store.dense(run.recipe)
        before, after = (token_losses(model, text) for model in (dense, store.run_model(run)))
        answer_of_dense = dense_tokens() if dense_tokens else []
    except lrcore.InputError as error:  # for example, an answer that fills the context
        return title + markup.note(str(error))
    aligned = continuation.align(before, after, answer_of_dense, prompt)
    summary = answer_markup.divergence(aligned) if dense_tokens else ""
    return title + markup.note(summary) + answer_markup.answer(aligned)
