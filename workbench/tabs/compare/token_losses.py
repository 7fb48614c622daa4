"""Change in loss of the compressed models, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import gradio as gr

from lrcore.evaluation.evaluate import token_losses

from ... import words
from ...state.keys import model_key
from ...state.store import Store
from ...views import answer_markup
from ...widgets.components import button_row_html, panel
from ...widgets.events import bind, listen
from ...widgets.page import Page
from .chosen_runs import selected_runs


@dataclass(frozen=True)
class TokenLosses:
    """colored: the button, and the colored passages."""

    passage: gr.Textbox
    colored: gr.HTML


def layout() -> TokenLosses:
    """Place the passage and the button."""
    text = words.compare_and_runs
    with gr.Accordion(text.TOKEN_LOSSES, open=False):
        passage = gr.Textbox(
            text.PASSAGE,
            label=text.PASSAGE_BOX,
            info=text.TOKENS_HELP,
            lines=3,
            elem_id="passage",
        )
        return TokenLosses(passage, panel("coloured", value=color_button()))


def color_button() -> str:
    """Return the button above the colored passages."""
    return button_row_html({"colour": words.compare_and_runs.COLOR_TOKENS})


def wire(page: Page, store: Store, parts: TokenLosses) -> None:
    """Attach the handler."""
    inputs, private = [parts.passage, page.chosen], {"api_visibility": "private"}
    listen([parts.colored.select], bind(color_passage, store), inputs, parts.colored, **private)


def color_passage(store: Store, passage: str, ids: list[str]) -> str:
    """Return the button, and the passage of each selected run, colored by the change from the
    dense model.
    """
    passages, runs = [], selected_runs(store, ids)
    bases = {model_key(run.recipe): run.recipe for run in runs}
    dense = {key: token_losses(store.dense(recipe), passage) for key, recipe in bases.items()}
    for run in runs:
        before = dense[model_key(run.recipe)]
        after = token_losses(store.run_model(run), passage)
        tokens = [
            (token, dense_loss, loss)
            for (token, dense_loss), (_, loss) in zip(before, after, strict=True)
        ]
        title = words.compare_and_runs.MEAN_CHANGE.format(run.name, mean_change(tokens))
        passages.append(f"<h4>{escape(title)}</h4>{answer_markup.colored(tokens)}")
    scale = answer_markup.scale(words.compare_and_runs.TOKEN_SCALE)
    return color_button() + "".join(passages) + scale


def mean_change(tokens: Sequence[tuple[str, float, float]]) -> float:
    """Return the mean change (nats/token) of (token, dense loss, compressed loss)."""
    # the first token has no loss
    return sum(loss - dense for _, dense, loss in tokens[1:]) / max(len(tokens) - 1, 1)
