"""Division of conversations that are longer than a window."""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

from .chat_template import Messages, render
from .tokenized import Tokenized

DIVISION = "divided at messages of the user"  # in the protocol of windows
INSTRUCTIONS = ("system", "developer")  # roles of messages that apply to a complete conversation


def tokenized_parts(
    tokenizer: Any, messages: Messages, length: int, tokenize: Callable[[str], Tokenized]
) -> list[Tokenized]:
    """Return the tokens of a conversation, in several parts if it has more than `length` tokens.

    A part is a conversation that begins with a message of the user, after the system message of the
    complete conversation if that fills at most half of `length`. All parts but the last have at
    least `length` tokens. A conversation with a single message of the user is not divided.
    """

    def tokens(part: Messages) -> Tokenized:
        return tokenize(render(tokenizer, part))

    complete = tokens(messages)
    if len(complete.ids) <= length:
        return [complete]
    roles = [message["role"] for message in messages]
    first = next((n for n, role in enumerate(roles) if role not in INSTRUCTIONS), len(roles))
    system = messages[:first]
    instructions = "".join(message["content"] for message in system)
    repeated = system if 2 * len(tokenize(instructions).ids) <= length else []
    ends = [
        n for n in range(first + 1, len(roles)) if roles[n] == "user" and roles[n - 1] != "user"
    ]

    def part(begin: int, end: int | None) -> Tokenized:
        return tokens((system if begin == first else repeated) + messages[begin:end])

    def size(begin: int, end: int) -> int:
        return len(part(begin, end).ids)

    begins = [first]
    while ends:
        ends = ends[_first_of_size(ends, length, partial(size, begins[-1])) :]
        begins, ends = begins + ends[:1], ends[1:]
    return [part(*limits) for limits in zip(begins, [*begins[1:], None], strict=True)]


def _first_of_size(ends: list[int], length: int, size: Callable[[int], int]) -> int:
    """Return the index of the first end whose size is at least `length`; len(ends) without any.

    The sizes increase. Few sizes much larger than `length` are computed.
    """
    count = 1
    while count < len(ends) and size(ends[count - 1]) < length:
        count *= 2
    return bisect_left(ends, length, count // 2, min(count, len(ends)), key=size)
