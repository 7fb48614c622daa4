"""Where answers leave the dense model's, and what each token then costs."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import lrcore

from ... import continuation, markup, run_markup, run_text
from ...form import MAPPINGS
from ...keys import model_key
from ...store import Store
from .models import dense_recipe

NOTHING_YET = markup.note(run_text.NO_ANSWERS, "hint")
FORM_VALUES = 1 + len(MAPPINGS)  # of the form as listeners are given it


def diverge(store: Store, prompt: str, ids: Sequence[str], *values: Any) -> str:
    """One block per chosen run.

    values: what stands in the columns, the dense model's first; then the form.
    """
    runs = store.chosen_runs(ids)
    shown, form = values[: len(runs) + 1], values[-FORM_VALUES:]
    if not runs or not all(one and one != prompt for one in shown):
        return NOTHING_YET
    recipe = dense_recipe(store, ids, form)
    return marks(store, runs, recipe, prompt, shown) + run_markup.scale(run_text.SCALE)


def marks(
    store: Store,
    runs: Sequence[lrcore.Run],
    recipe: lrcore.Recipe,
    prompt: str,
    said: Sequence[str],
) -> str:
    """One block per run. recipe: names the dense model; said: its text, then that of each run, the
    prompt before each.
    """

    @cache
    def others() -> list[tuple[str, float]]:
        return lrcore.token_losses(store.dense(recipe), said[0])

    blocks = []
    for run, answer in zip(runs, said[1:], strict=True):
        own = model_key(run.recipe) == model_key(recipe)
        blocks.append(block(store, run, prompt, answer, others if own else None))
    return "".join(blocks)


def block(
    store: Store,
    run: lrcore.Run,
    prompt: str,
    answer: str,
    dense_answer: Callable[[], list[tuple[str, float]]] | None,
) -> str:
    """The answer of a run, token by token; dense_answer: gives the tokens of the dense model's and
    their losses; None where that is another model than the run was made of.
    """
    title = f"<h4>{markup.escape(run.name)}</h4>"
    try:
        dense = store.dense(run.recipe)
        before, now = (lrcore.token_losses(one, answer) for one in (dense, store.small(run)))
        others = dense_answer() if dense_answer else []
    except lrcore.InputError as error:  # such as an answer that fills the context
        return title + markup.note(str(error))
    said = continuation.beside(before, now, others, prompt)
    summary = run_text.divergence(said) if dense_answer else ""
    return title + markup.note(summary) + run_markup.answer(said)
