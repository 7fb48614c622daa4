"""Conversations as text, by the chat template of a tokenizer."""

import hashlib
import json
from typing import Any

from ..system.errors import InputError
from ..system.resource_errors import raise_shortage
from .texts import Texts

Messages = list[dict[str, Any]]


def has_template(tokenizer: Any) -> bool:
    """Return whether a tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def is_rendered(texts: Texts, tokenizer: Any) -> bool:
    """Return whether the chat template renders the documents.

    Without a template, rows of instruction and output are plain text. Raises InputError for all
    other conversations if the tokenizer has no template.
    """
    if not has_template(tokenizer) and texts.needs_template:
        raise without_template(f"{texts.name} has conversations", "choose plain text")
    return bool(texts.conversations) and has_template(tokenizer)


def without_template(reason: str, alternative: str) -> InputError:
    """Return the error for conversations and a tokenizer without a chat template."""
    return InputError(
        f"{reason}, but the tokenizer of the model has no chat template. Copy chat_template.jinja "
        "(or the tokenizer files) of the instruct version of the model into its folder, or "
        f"{alternative}."
    )


def template_key(tokenizer: Any) -> str:
    """Return the first 16 digits of the sha256 of a chat template."""
    template = json.dumps(tokenizer.chat_template, sort_keys=True, allow_nan=False)
    return hashlib.sha256(template.encode()).hexdigest()[:16]


def render(tokenizer: Any, messages: Messages, **options: Any) -> Any:
    """Return the text of messages, with all special tokens that the template writes.

    options: further arguments of `apply_chat_template`. Raises InputError if the template cannot
    render the messages.
    """
    try:
        return tokenizer.apply_chat_template(messages, **{"tokenize": False} | options)
    except Exception as error:  # of any class: a template is code of the model's author
        raise_shortage(error)
        roles = ", ".join(str(message.get("role")) for message in messages[:6])
        raise InputError(
            f"The chat template of the tokenizer cannot render a conversation ({error}). Its roles "
            f"are {roles}{', ...' if len(messages) > 6 else ''}. Remove or repair it."
        ) from error
