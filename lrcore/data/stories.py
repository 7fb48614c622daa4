"""Built-in stories and multiple-choice questions about them.

scripts/make_stories.py generates the files in assets/stories.
"""

import gzip
import json
from itertools import islice
from typing import Any, Literal

from ..system.errors import InputError, unknown
from ..system.files import ASSETS

Split = Literal["train", "calibration", "test"]
STORIES = {"train": 20_000, "calibration": 400, "test": 400}
QUESTIONS = {"calibration": 400, "test": 400}


def documents(split: str, count: int | None = None) -> list[str]:
    """Return the first `count` stories of a split, by default all.

    A story has 80 to 400 words in one or more paragraphs separated by one newline. Raises
    InputError for an unknown split and for more stories than are stored.
    """
    return _first("stories", split, STORIES, count)


def probes(split: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the first `count` questions of a split, by default all.

    A question is {"question", "choices", "label", "kind"}. `question` is a story and the beginning
    of a last sentence; `question + choices[label]` is true of the story, all other choices (each
    begins with a space) are false. `kind` is "holder", "spot", "place", "count", "pronoun" or
    "number". Raises InputError for an unknown split and for more questions than are stored.
    """
    return _first("questions", split, QUESTIONS, count)


def _first(kind: str, split: str, sizes: dict[str, int], count: int | None) -> list[Any]:
    if split not in sizes:
        raise unknown("stories split", split, sizes)
    if count is not None and count > sizes[split]:
        raise InputError(
            f"The split '{split}' has {sizes[split]:,} {kind}, but {count:,} were requested. "
            f"Request at most {sizes[split]:,}."
        )
    file = ASSETS / "stories" / f"{kind}.{split}.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]
