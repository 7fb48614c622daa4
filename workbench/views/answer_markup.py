"""HTML of texts that models wrote or read, token by token."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lrcore.data.chat_template import Messages

from .. import words
from ..base import numbers
from ..state.continuation import Continuation
from . import markup

MOST_NATS = 3  # change in loss with the strongest color: twenty times less likely
LINE_END = "\n"
CONTINUATION = "continuation"  # the key under which the page receives the live continuation


def colored(tokens: Sequence[tuple[str, float, float]]) -> str:
    """Return tokens colored by change in loss. tokens: (text, dense loss, compressed loss)."""
    return f"<div class='tokens'>{''.join(token(*triple) for triple in tokens)}</div>"


def token(text: str, dense: float, compressed: float, kind: str = "") -> str:
    """Return a token colored by the change in loss (nats). kind: an additional CSS class."""
    change = compressed - dense
    tip = f"dense {dense:.2f}, compressed {compressed:.2f}, change {change:+.2f} nats"
    return (
        f"<span class='{kind}' title='{escape(tip, quote=True)}' "
        f"style='background:{shade(change)}'>{escape(text).replace(LINE_END, '↵<br>')}"
        "</span>"
    )


def shade(change: float) -> str:
    """Return red for an increase in loss, blue for a decrease; strongest at MOST_NATS."""
    # the first token has no loss
    strength = min(abs(change) / MOST_NATS, 1) if math.isfinite(change) else 0
    return f"rgba({'214,62,62' if change > 0 else '60,120,200'},{0.75 * strength:.2f})"


def scale(legend: str) -> str:
    """Return the color scale of the change in loss, with a legend."""
    steps = [MOST_NATS * i / 4 for i in range(-4, 5)]
    boxes = "".join(f"<span style='background:{shade(step)}'></span>" for step in steps)
    return (
        f"<div class='scale'><span>−{MOST_NATS}</span><span class='boxes'>{boxes}</span>"
        f"<span>+{MOST_NATS}</span><span>{escape(legend)}</span></div>"
    )


def answer(continuation: Continuation) -> str:
    """Return an answer: gray as long as it equals the dense model's, then colored by loss."""
    parts, begin, first = [], continuation.begin, continuation.first
    for position, (text, dense, compressed) in enumerate(continuation.tokens):
        if position < max(begin, first):
            kind = "prompt" if position < begin else "same"
            parts.append(token(text, dense, compressed, kind))
        else:
            parts.append(token(text, dense, compressed, "first" if position == first else ""))
    return f"<div class='tokens'>{''.join(parts)}</div>"


def marked(continuation: Continuation) -> str:
    """Return an answer token by token, and a sentence about its first difference.

    A continuation without an answer of the dense model has no sentence.
    """
    if continuation.error:
        return markup.note(continuation.error)
    sentence = divergence(continuation) if continuation.dense else ""
    return answer(continuation) + markup.note(sentence)


def columns(titles: Sequence[str], texts: Sequence[str], marked_texts: Sequence[str]) -> str:
    """Return the answers of all models side by side, in the order of their titles.

    texts: prompt and answer of each model; [] before the first answers. marked_texts: HTML of the
    same texts token by token; [] while the answers grow.
    """
    sections, text_of_tab = [], words.compare_and_runs
    for position, title in enumerate(titles):
        text = texts[position] if texts else ""
        body = marked_texts[position] if marked_texts else f"<p>{escape(text)}</p>"
        name = escape(title, quote=True)
        label = escape(text_of_tab.COPY_ANSWER.format(title), quote=True)
        copy = (
            f"<button type='button' class='copy' aria-label='{label}'>{text_of_tab.COPY}</button>"
        )
        sections.append(
            f"<section id='answer-{position}' aria-label='{name}' "
            f"data-text='{escape(text, quote=True)}'>"
            f"<h4>{name}{copy if text else ''}</h4>{body}</section>"
        )
    legend = scale(text_of_tab.ANSWER_SCALE) if marked_texts else ""
    hint = "" if texts else markup.note(text_of_tab.NO_ANSWERS, "hint")
    return f"<div class='chats answers'>{''.join(sections)}</div>{legend}{hint}"


def conversations(titles: Sequence[str], chats: Sequence[Messages]) -> str:
    """Return the conversations of all models side by side, in the order of their titles."""
    columns = (
        f"<section aria-label='{escape(title, quote=True)}'><h4>{escape(title)}</h4>"
        f"{''.join(map(message, chat))}</section>"
        for title, chat in zip(titles, chats, strict=True)
    )
    return f"<div class='chats'>{''.join(columns)}</div>"


def message(message: Mapping[str, Any]) -> str:
    """Return a message of a conversation as a bubble."""
    role = "user" if message["role"] == "user" else "assistant"
    return f"<p class='message {role}'>{escape(message['content'])}</p>"


def divergence(continuation: Continuation) -> str:
    """Return a sentence about the first difference between an answer and the dense model's."""
    text = words.compare_and_runs
    tokens, dense_tokens = continuation.tokens, continuation.dense
    begin, first = continuation.begin, continuation.first
    if first >= max(len(tokens), len(dense_tokens)):
        return text.SAME_ANSWER.format(numbers.plural(len(tokens) - begin, "token"))
    same_count = max(0, first - begin)
    same = text.SAME_UNTIL.format(numbers.plural(same_count, "token"))
    if first >= len(tokens) or first >= len(dense_tokens):
        ended = words.allocation.COMPRESSED if first >= len(tokens) else words.allocation.DENSE
        return same + text.ENDS_FIRST.format(ended)
    remaining = [[token for token, *_ in texts[first:]] for texts in (tokens, dense_tokens)]
    word, dense_word = map(first_word, remaining)
    if word == dense_word:  # they differ in the white space before the word
        word, dense_word = (visible(texts[0]) for texts in remaining)
    changes = [compressed - dense for _, dense, compressed in tokens[first:]]
    change = numbers.nats(sum(changes) / len(changes))
    if same_count:
        difference = f"{same}, {text.DIFFERS.format(word, dense_word)}"
    else:
        difference = text.DIFFERS_FIRST.format(word, dense_word)
    return difference + text.CHANGE_AFTERWARDS.format(change)


def visible(token: str) -> str:
    """Return a token with visible signs for spaces and line ends."""
    return token.replace(" ", "␣").replace("\n", "↵")


def first_word(tokens: Sequence[str]) -> str:
    """Return the first word of a list of tokens, up to white space."""
    return next(iter("".join(tokens).split()), "")


def agreement(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many answers of each model to a set of prompts equal the first model's.

    Prompts without an answer, because they fill the context, do not count. rows: as
    `answer_prompts` returns them.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    sentences = []
    for model in models[1:]:
        answered = [row for row in rows if row["model"] == model and not row["error"]]
        same = sum(bool(row["same_as_first"]) for row in answered)
        sentences.append(words.compare_and_runs.AGREEMENT.format(model, same, len(answered)))
    return "; ".join(sentences) + ("." if sentences else "")


def waiting(prompt: str) -> str:
    """Return the note in place of a live continuation before it is available."""
    text = words.allocation
    return markup.note(text.CONTINUATION_WAITS if prompt else text.CONTINUATION_EMPTY, "hint")


def live_continuation(key: str, continuation: Continuation) -> str:
    """Return the continuations of both models after the prompt. key: of the displayed plan."""
    if continuation.error:
        return f"<div data-of='{key}'>{markup.note(continuation.error, 'error')}</div>"
    begin, first = continuation.begin, max(0, continuation.first - continuation.begin)
    dense = tuple((token, loss, loss) for token, loss in continuation.dense[begin:])
    return (
        f"<div class='continued' data-of='{key}' role='status'>"
        f"<span>{words.allocation.DENSE}</span>{answer(Continuation(dense, first=first))}"
        f"<span>{words.allocation.COMPRESSED}</span>"
        f"{answer(Continuation(continuation.tokens[begin:], first=first))}"
        f"{markup.note(divergence(continuation))}</div>"
    )
