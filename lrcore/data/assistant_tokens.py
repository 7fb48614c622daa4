"""Tokens that an assistant writes in a conversation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..system.errors import InputError
from .chat_template import Messages, render
from .tokenized import Tokenized
from .tokens import tokenize

_TAG = re.compile(r"{%-?\s*generation\s*-?%}")


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer of the assistant.

    text: tokens of the conversation up to the end of the answer. scored: number of the tokens at
    its end that the assistant writes, at least 1.
    """

    text: Tokenized
    scored: int


def has_generation_tags(tokenizer: Any) -> bool:
    """Return whether the chat template marks the assistant's tokens with {% generation %}."""
    is_fast = bool(getattr(tokenizer, "is_fast", False))  # others do not return the marks
    return is_fast and _TAG.search(tokenizer.get_chat_template()) is not None


def answers(tokenizer: Any, messages: Messages) -> Iterator[Answer]:
    """Yield the answers of a conversation, each after the messages before it.

    An answer without previous messages is omitted. The tokens of the assistant are those that the
    template marks, or else those after the prompt for the answer up to the last visible character.
    Raises InputError if the template cannot render the messages, or changes previous messages when
    an answer follows.
    """
    find = _marked if has_generation_tags(tokenizer) else _after_prompt
    for count, message in enumerate(messages):
        if count and message["role"] == "assistant":
            answer = find(tokenizer, messages[:count], messages[: count + 1])
            if answer.scored > 0:
                yield answer


def _marked(tokenizer: Any, before: Messages, through: Messages) -> Answer:
    """Return the answer as the last tokens that the template marks; scored is 0 if it marks none.

    before: the messages before the answer. through: the same messages and the answer.
    """
    text, mask = tokenize(render(tokenizer, through), tokenizer), _mask(tokenizer, through)
    if not mask.any() or mask.sum() == _mask(tokenizer, before).sum():
        return Answer(text, 0)  # all marks are of previous answers
    end = int(mask.nonzero()[-1]) + 1
    unmarked = (~mask[:end]).nonzero()
    begin = int(unmarked[-1]) + 1 if len(unmarked) else 0
    return Answer(_first(text, end), end - max(begin, 1))  # no token predicts the first token


def _mask(tokenizer: Any, messages: Messages) -> Tensor:
    """Return which tokens the template marks, [n] bool."""
    encoding = render(
        tokenizer, messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return torch.tensor(encoding["assistant_masks"], dtype=torch.bool)


def _after_prompt(tokenizer: Any, before: Messages, through: Messages) -> Answer:
    """Return the answer as the tokens that follow the prompt. Messages as in `_marked`."""
    # The line break after the end of a turn is written by the template, not by the assistant.
    text = tokenize(render(tokenizer, through).rstrip(), tokenizer)
    prompt = tokenize(render(tokenizer, before, add_generation_prompt=True), tokenizer).ids
    begin = _common(text.ids, prompt)
    # The last token before the answer can be merged with the beginning of the answer. Templates
    # can end the prompt with the beginning of a thought, which an answer without a thought lacks.
    if begin < len(prompt) - 1:
        history = tokenize(render(tokenizer, before), tokenizer).ids
        if begin < len(history) - 1:
            raise InputError(
                "The chat template changes previous messages when an answer follows, so the "
                "tokens of the assistant are unknown. Mark them in the template with {% generation "
                "%} and {% endgeneration %}, or use protocol windows."
            )
    return Answer(text, len(text.ids) - max(begin, 1))


def _common(ids: Tensor, other_ids: Tensor) -> int:
    """Return the number of equal tokens at the beginning."""
    length = min(len(ids), len(other_ids))
    different = (ids[:length] != other_ids[:length]).nonzero()
    return int(different[0]) if len(different) else length


def _first(text: Tokenized, count: int) -> Tokenized:
    return Tokenized(text.ids[:count], None if text.ends is None else text.ends[:count])
