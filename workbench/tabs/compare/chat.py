"""A chat with the dense model and the selected runs, side by side.

Each model continues its own conversation: the messages of the user, and its own answers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

import lrcore
from lrcore.data.chat_template import Messages, has_template
from lrcore.evaluation.answers import stream_chat
from lrcore.models.load import folder_has_template

from ... import words
from ...base import process
from ...state.store import Store
from ...views import answer_markup, markup
from ...widgets.components import PRIMARY, button_row, panel
from ...widgets.events import DRAWN, QUIET, bind, listen
from ...widgets.fields import FieldGroup
from ...widgets.page import Page
from . import answers, chosen_runs

NO_MESSAGES = markup.note(words.compare_and_runs.NO_MESSAGES, "hint")


@dataclass(frozen=True)
class Chat:
    """conversations: the messages of each model, the dense model first; [] before the first."""

    area: gr.Column
    conversations: gr.State
    view: gr.HTML
    message: gr.Textbox
    buttons: gr.HTML


def layout() -> Chat:
    """Place the conversations and the message box, hidden until the models have a chat template."""
    text = words.compare_and_runs
    with gr.Column(visible=False, elem_id="chat") as area:
        view = panel("conversations", value=NO_MESSAGES)
        with gr.Row(elem_classes="bottom"):
            message = gr.Textbox(
                text.FIRST_MESSAGE,
                label=text.MESSAGE,
                placeholder=text.MESSAGE_PLACEHOLDER,
                lines=1,
                max_lines=6,
                elem_id="chat-message",
                scale=4,
            )
            buttons = button_row(
                "chat-buttons",
                {"send-message": text.SEND, "stop-chat": text.STOP, "new-chat": text.NEW_CHAT},
                {"send-message": PRIMARY},
                {"send-message": "submit", "stop-chat": "stop", "new-chat": "clear"},
            )
    return Chat(area, gr.State([]), view, message, buttons)


def wire(
    page: Page,
    store: Store,
    parts: Chat,
    settings: FieldGroup,
    changed: gr.events.Dependency,
) -> None:
    """Attach the handlers. settings: as in `answers.Answers`. changed: the selection of runs."""
    selected = [page.chosen, *page.form.inputs]
    outputs = [parts.area, parts.conversations, parts.view]
    listen(changed, bind(offer, store), selected, outputs, **DRAWN)
    streaming = listen(
        [parts.buttons.submit, parts.message.submit],
        bind(send, store),
        [parts.message, settings, parts.conversations, *selected],
        [parts.message, parts.conversations, parts.view],
        **QUIET,
        concurrency_limit=2,
    )
    parts.buttons.stop(None, None, None, cancels=[streaming], **QUIET)
    parts.buttons.clear(clear, None, [parts.conversations, parts.view], **QUIET)


def offer(store: Store, ids: list[str], *values: Any) -> tuple[Any, ...]:
    """Show an empty chat if the models have a chat template; otherwise hide it."""
    return gr.update(visible=can_chat(store, ids, values)), [], NO_MESSAGES


def can_chat(store: Store, ids: Sequence[str], values: Sequence[Any]) -> bool:
    """Return whether the tokenizer of the first selected run, otherwise that of the loaded dense
    model, has a chat template.
    """
    runs = store.runs_by_id(ids)
    if runs:
        return folder_has_template(runs[0].checkpoint)
    dense = store.peek_dense(chosen_runs.dense_recipe(store, ids, values))
    return dense is not None and has_template(dense.tokenizer)


def clear() -> tuple[list[Messages], str]:
    """Return no conversations, and the hint in their place."""
    return [], NO_MESSAGES


def send(
    store: Store, message: str, sampling: Sequence[Any], *values: Any
) -> Iterator[tuple[str, list[Messages], str]]:
    """Yield an empty message box, the conversations and their HTML as the answers grow.

    sampling: arguments of `answers.generation_settings`. values: the conversations so far, then the
    selected runs and the form.
    """
    if not message.strip():
        raise lrcore.InputError(words.compare_and_runs.NO_MESSAGE)
    previous, ids, *form = values
    titles = answers.titles(store, ids, form)
    models = chosen_runs.models(store, ids, form)
    conversations = [
        [*messages, {"role": "user", "content": message.strip()}]
        for messages in previous or [[] for _ in models]
    ]
    yield "", conversations, answer_markup.conversations(titles, conversations)
    settings = answers.generation_settings(*sampling)
    with process.released_memory():
        stream = stream_chat(models, conversations, **settings)
        for partial_answers in answers.frames(stream):
            answered = [
                [*messages, {"role": "assistant", "content": answer.text}]
                for messages, answer in zip(conversations, partial_answers, strict=True)
            ]
            yield "", answered, answer_markup.conversations(titles, answered)
