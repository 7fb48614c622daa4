"""Needle in a haystack: one sentence hidden in a long text, at evenly spread depths, and asked for
at its end, as multiple choice. Built in as the tasks "needle-256", "needle-2048", ...
"""

import random
import re
from typing import Any

from ..data import load_texts
from ..data.tokens import encoded
from ..errors import InputError
from ..models.load import LoadedModel

TASK = re.compile(r"needle-(\d+)")
ITEMS = 20  # where the caller gives no number
LEAST = 64  # tokens: needle and question are about 30
SPARE = 16  # tokens left for what changes where texts are joined
CITIES = ("Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Athens")


def is_needle(task: str) -> bool:
    """Whether a task is one of these."""
    return TASK.fullmatch(task) is not None


def needle_items(model: LoadedModel, task: str, count: int | None = None) -> list[dict[str, Any]]:
    """Items of a task "needle-TOKENS": a text of at most so many tokens of the model's tokenizer,
    with "The secret number of Rome is 4821." at the i-th of `count` depths, from its beginning to
    its end, then the question, and four numbers to choose from.

    Filler is the test split of "python-docs". Raises InputError where the model has fewer
    positions, or the task fewer tokens than it takes.
    """
    match = TASK.fullmatch(task)
    tokens = int(match[1]) if match else 0
    if tokens < LEAST:
        raise InputError(f"A task '{task}' is too short for its needle: at least needle-{LEAST}.")
    if model.context is not None and tokens > model.context:
        raise InputError(
            f"'{task}' has {tokens} tokens, and '{model.name}' reads {model.context}. Choose at "
            f"most needle-{model.context}."
        )
    # an underscore alone would be a blank to fill in, see `tasks.continuations`
    hay = load_texts("python-docs", "test").joined()[: 40 * tokens].replace("_", "-")
    ids = encoded(model.tokenizer, hay, add_special_tokens=False).input_ids
    return [_item(model, ids, tokens, i, count or ITEMS) for i in range(count or ITEMS)]


def _item(model: LoadedModel, ids: list[int], tokens: int, place: int, count: int) -> dict:
    draw = random.Random(f"needle/{place}")
    city, numbers = draw.choice(CITIES), draw.sample(range(1000, 10000), 4)
    label = draw.randrange(4)
    needle = f"The secret number of {city} is {numbers[label]}."
    question = f"Question: what is the secret number of {city}? The secret number of {city} is"
    used = sum(
        len(encoded(model.tokenizer, text, add_special_tokens=False).input_ids)
        for text in (needle, question, f" {numbers[0]}")
    )
    length = max(0, tokens - used - SPARE)
    start = draw.randrange(max(1, len(ids) - length))
    own, at = ids[start : start + length], round(length * place / max(1, count - 1))
    before, after = (model.tokenizer.decode(part) for part in (own[:at], own[at:]))
    return {
        "question": "\n".join(part for part in (before, needle, after, question) if part.strip()),
        "choices": [f" {number}" for number in numbers],
        "label": label,
    }
