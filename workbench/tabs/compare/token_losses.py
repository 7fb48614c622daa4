"""How much more the compressed models lose than the dense one, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import gradio as gr

import lrcore

from ... import markup, run_markup, run_text, text
from ...components import Textbox, panel
from ...events import bind, listen
from ...keys import model_key
from ...page import Page
from ...store import Store
from .models import some_runs


@dataclass(frozen=True)
class TokenLosses:
    passage: gr.Textbox
    colour: gr.Button
    coloured: gr.HTML


def layout() -> TokenLosses:
    with gr.Accordion(text.TOKEN_LOSSES, open=False):
        gr.Markdown(text.TOKENS_HELP)
        passage = Textbox(text.PASSAGE, label="Text", lines=3, elem_id="passage")
        colour = gr.Button("Colour the tokens", elem_id="colour")
        return TokenLosses(passage, colour, panel("coloured"))


def wire(page: Page, store: Store, parts: TokenLosses) -> None:
    inputs = [parts.passage, page.chosen]
    painted, private = parts.coloured, {"api_visibility": "private"}
    listen([parts.colour.click], bind(paint, store), inputs, painted, **private)


def paint(store: Store, passage: str, ids: list[str]) -> str:
    """The passage once per chosen run, each token coloured by what the run loses there against its
    own dense model.
    """
    blocks, runs = [], some_runs(store, ids)
    bases = {model_key(run.recipe): run.recipe for run in runs}
    dense = {
        key: lrcore.token_losses(store.dense(recipe), passage) for key, recipe in bases.items()
    }
    for run in runs:
        own, small = dense[model_key(run.recipe)], lrcore.token_losses(store.small(run), passage)
        tokens = [
            (token, before, now) for (token, before), (_, now) in zip(own, small, strict=True)
        ]
        title = f"{markup.escape(run.name)}: {mean_rise(tokens):+.3f} nats per token"
        blocks.append(f"<h4>{title}</h4>{markup.coloured(tokens)}")
    return "".join(blocks) + run_markup.scale(run_text.TOKEN_SCALE)


def mean_rise(tokens: Sequence[tuple[str, float, float]]) -> float:
    """Mean increase in loss (nats/token) of (token, dense loss, compressed loss)."""
    # nothing predicts the first token
    return sum(now - before for _, before, now in tokens[1:]) / max(len(tokens) - 1, 1)
