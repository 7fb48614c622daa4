"""Answers of runs, compared with the dense model's token by token."""

from collections.abc import Sequence
from functools import cache

import lrcore
from lrcore.evaluation.evaluate import token_losses
from lrcore.runs.runs import Run

from ...state import continuation
from ...state.continuation import Continuation
from ...state.keys import model_key
from ...state.store import Store

Tokens = list[tuple[str, float]]  # with their losses, nats


def align_answers(
    store: Store,
    runs: Sequence[Run],
    recipe: lrcore.Recipe,
    prompt: str,
    texts: Sequence[str],
) -> list[Continuation]:
    """Return the answer of each run, aligned with the dense model's.

    A run that was made from a different model has no answer of the dense model. recipe: names the
    dense model. texts: prompt and answer of the dense model, then of each run.
    """

    @cache
    def dense_tokens() -> Tokens:
        return token_losses(store.dense(recipe), texts[0])

    aligned = []
    for run, text in zip(runs, texts[1:], strict=True):
        has_same_base = model_key(run.recipe) == model_key(recipe)
        try:
            models = store.dense(run.recipe), store.run_model(run)
            before, after = (token_losses(model, text) for model in models)
            answer_of_dense = dense_tokens() if has_same_base else []
        except lrcore.InputError as error:  # for example, an answer that fills the context
            aligned.append(Continuation(error=str(error)))
            continue
        aligned.append(continuation.align(before, after, answer_of_dense, prompt))
    return aligned


def dense_answer(aligned: Sequence[Continuation]) -> Continuation | None:
    """Return the dense model's answer, which differs where the first run does.

    Returns None if no run was aligned with it.
    """
    comparable = [answer for answer in aligned if answer.dense]
    if not comparable:
        return None
    tokens = tuple((token, loss, loss) for token, loss in comparable[0].dense)
    first = min(answer.first for answer in comparable)
    return Continuation(tokens, (), comparable[0].begin, first)
