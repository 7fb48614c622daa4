"""Conversations in rows of data sets: lists of messages, and prompts with completions.

A conversation is a JSON list of messages, {"role", "content"}, as chat templates read them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ..system.as_json import json_text
from ..system.errors import InputError, unknown

LISTS = ("messages", "conversations")  # fields with a list of messages
PAIR = ("prompt", "completion")
# Roles of chat templates by the speakers of ShareGPT.
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


def is_null(value: object) -> bool:
    """Return whether a value of a row is null: None, or NaN, NA or NaT as in tables of pandas."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def has_messages(value: object) -> bool:
    """Return whether a value is a list of messages with a role or a speaker."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and ("role" in first or "from" in first)


def conversation_fields(rows: Iterable[Any], field: str) -> tuple[str, ...]:
    """Return the fields of rows that contain conversations, or ().

    field: the only field to look at; "" for `LISTS`, then `PAIR`.
    """
    names = set[str]()
    for row in rows:
        if isinstance(row, Mapping):
            names.update(() if field else row)
            for name in (field,) if field else LISTS:
                if has_messages(row.get(name)):
                    return (name,)
    return PAIR if names >= set(PAIR) else ()


def conversation_of(row: Any, fields: tuple[str, ...], where: str) -> str | None:
    """Return the conversation of a row as JSON, or None if it is null or has no text.

    fields: of `conversation_fields`. Raises InputError for a missing field and invalid messages.
    """
    if is_null(row):
        return None
    messages: list[dict[str, Any] | None] = []
    for name, role in zip(fields, ("user", "assistant"), strict=False):
        value = row.get(name, ...) if isinstance(row, Mapping) else ...
        if is_null(value):
            return None
        if isinstance(value, str) and fields == PAIR:
            messages.append({"role": role, "content": value})
        elif isinstance(value, list):
            messages += [
                _message(message, f"{where}, message {number}")
                for number, message in enumerate(value, start=1)
            ]
        else:
            kind = "missing" if value is ... else type(value).__name__
            raise InputError(
                f"{where}: field '{name}' is {kind}, not a list of messages. Remove or repair the "
                "row."
            )
    if None in messages or not any(message["content"].strip() for message in messages if message):
        return None
    return json_text(messages, ensure_ascii=False)


def _message(message: Any, where: str) -> dict[str, Any] | None:
    """Return a message with role and content; None if its content is null."""
    fields = message if isinstance(message, Mapping) else {}
    role = fields.get("role")
    if role is None and "from" in fields:
        speaker = str(fields["from"])
        if speaker not in SPEAKERS:
            raise unknown(f"speaker of {where}", speaker, SPEAKERS)
        fields, role = {"content": fields.get("value")}, SPEAKERS[speaker]
    if not isinstance(role, str):
        raise InputError(
            f"{where} has no role. A message is an object with role and content, or with from and "
            "value."
        )
    # Templates also read other fields, such as tool_calls. In tables, missing fields are null.
    present = {name: value for name, value in fields.items() if not is_null(value)}
    content = fields.get("content")
    if is_null(content):
        return present | {"role": role, "content": ""} if present.get("tool_calls") else None
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise InputError(
            f"{where}: the content is {type(content).__name__} without text only. Remove or repair "
            "the row; conversations with images are not supported."
        )
    return present | {"role": role, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
