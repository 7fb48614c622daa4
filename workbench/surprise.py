"""How much more surprised the compressed models are than the dense one, token by token."""

from typing import Any

import gradio as gr

import lrcore

from . import markup, text
from .parts import panel, spoken
from .runs import dense_recipe, picked
from .session import Session


def build_surprise(session: Session, chosen: gr.Dropdown) -> None:
    with gr.Accordion("Surprise, token by token", open=False):
        gr.Markdown(text.TOKENS_HELP)
        passage = gr.Textbox(text.PASSAGE, label="Text", lines=3, elem_id="passage")
        colour = gr.Button("Colour the tokens", elem_id="colour")
        out = panel("coloured")

    @spoken
    def paint(passage: str, ids: list[str], *said: Any) -> str:
        runs = picked(session, ids)
        if not runs:
            raise lrcore.InputError("No run is chosen: choose one above.")
        dense = lrcore.token_losses(session.dense(dense_recipe(session, ids, said)), passage)
        blocks = []
        for run in runs:
            small = lrcore.token_losses(session.small(run), passage)
            tokens = [
                (token, before, now) for (token, before), (_, now) in zip(dense, small, strict=True)
            ]
            rise = sum(now - before for _, before, now in tokens[1:]) / max(
                len(tokens) - 1, 1
            )  # nothing predicts the first token
            blocks.append(
                f"<h4>{markup.escape(run.name)}: {rise:+.3f} nats per "
                f"token</h4>{markup.coloured(tokens)}"
            )
        return "".join(blocks)

    colour.click(paint, [passage, chosen, *session.form.all], out, api_visibility="private")
