"""Multiple-choice questions with or without an image: built in, or rows of a .jsonl file.

A row is {"question", "choices", "label"}. The optional "image" is a file in the same folder, or
base64 of a file; it is inserted at <image>, or before the question. The optional "groups" are parts
of the question set with separate results, such as a subject.
"""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..system.errors import InputError, shown, unknown
from ..system.path_access import place_of
from . import scienceqa, shapes, stories
from .rows import parsed, reading

BUILTIN_TASKS = ("stories", "shapes", "scienceqa")
# data sets of questions that calibration supports, about half of them with an image
PICTURED: Mapping[str, Callable[[str, int | None], list[dict[str, Any]]]] = {
    "shapes": shapes.items,
    "scienceqa": scienceqa.items,
}
MARKER = "<image>"  # position of the image in a question
_MAX_IMAGE = 50_000_000  # bytes of a file
# The blank of a question: an underscore at the start of a word, as in "so _ always". A line of
# underscores is not a blank.
_BLANK = re.compile(r"(?<!\S)_(?!_)")


def read_items(
    task: str, count: int | None = None, split: stories.Split = "test"
) -> list[dict[str, Any]]:
    """Return the first `count` items of a built-in task or a .jsonl file; None for all.

    Images are in the form of `with_marker`.

    split: "calibration" or "test", for built-in tasks. Raises InputError for an unknown task, a
    missing or empty file, and an invalid line.
    """
    if task in PICTURED:
        return [with_marker(item) for item in PICTURED[task](split, count)]
    if task == "stories":
        return stories.probes(split, count)
    path = place_of(task)
    if path.suffix != ".jsonl" or not path.is_file():
        if path.suffix == ".jsonl":
            raise InputError(f"No file '{path}'. Relative paths start at {Path.cwd()}.")
        raise unknown(
            "task",
            task,
            BUILTIN_TASKS,
            'Or enter needle-TOKENS, or a .jsonl file of {"question", "choices", "label"}.',
        )
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError(
            f"'{path}' has no items. Each line must be an object with question, choices and label."
        )
    return [
        _item(line, f"line {number} of '{path}'", path.parent)
        for number, line in enumerate(lines[:count], start=1)
    ]


def has_questions(row: Any) -> bool:
    """Return whether a row of a file is a question, not a text."""
    return isinstance(row, dict) and "text" not in row and {"question", "choices"} <= row.keys()


def solved(item: Mapping[str, Any]) -> str:
    """Return the question with the correct choice."""
    context, text = continuations(item)[int(item["label"])]
    return (context.rstrip() if text[0].isspace() else context) + text


def images_of(items: list[dict[str, Any]]) -> dict[str, bytes]:
    """Return the files of all images, by the key in their marker."""
    return {key: file for item in items for key, file in item.get("images", {}).items()}


def continuations(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (context, scored text) of each choice.

    In a question with a blank "_", the choice fills the blank, and the text after the blank is
    scored (WinoGrande). Otherwise the choice follows the question and is scored.
    """
    question, choices = item["question"], item["choices"]
    blank = _BLANK.split(question)
    if len(blank) == 2 and blank[1].strip():
        return [(blank[0] + choice, blank[1]) for choice in choices]
    return [(question, choice if choice[0].isspace() else f" {choice}") for choice in choices]


def with_marker(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item with "<image:KEY>" in its question and "images", {KEY: bytes}.

    "image" of the item: bytes of a file; KEY: the first 16 digits of their sha256. Items without an
    image are unchanged.
    """
    file = item.get("image")
    if file is None:
        return item
    key = hashlib.sha256(file).hexdigest()[:16]
    marker, question = f"<image:{key}>", item["question"]
    question = (
        question.replace(MARKER, marker, 1) if MARKER in question else f"{marker}\n{question}"
    )
    fields = {name: value for name, value in item.items() if name != "image"}
    return fields | {"question": question, "images": {key: file}}


def _item(line: str, where: str, folder: Path) -> dict[str, Any]:
    try:
        item = parsed(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is not valid JSON: {error}. Each line must be an object with question, "
            "choices and label."
        ) from error
    fields = item if isinstance(item, dict) else {}
    choices, label = fields.get("choices"), fields.get("label")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice.strip() for choice in choices)
    ):
        raise InputError(
            f"{where} has no list of at least two choices. Example: {{'question': ..., "
            f"'choices': [...], 'label': 0}}."
        )
    is_label = type(label) is int and 0 <= label < len(choices)
    if not isinstance(fields.get("question"), str) or not is_label:
        raise InputError(
            f"{where}: question must be text and label the index of the correct choice, 0 to "
            f"{len(choices) - 1}; got {shown(label)}."
        )
    groups = fields.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(name, str) and name for name in groups):
        raise InputError(
            f"{where}: groups must be a list of names, such as ['NAT']; got {shown(groups)}."
        )
    if fields.get("image") is None:
        return fields
    return with_marker(fields | {"image": _image(fields["image"], where, folder)})


def _image(image: Any, where: str, folder: Path) -> bytes:
    """Return the bytes of an image from a file in the folder of the questions or from base64."""
    if not isinstance(image, str):
        raise InputError(
            f"{where}: image must be a file in the folder of the questions, or base64; got "
            f"{type(image).__name__}."
        )
    path = folder / image[:1024]
    if len(image) < 1024 and os.path.isfile(path):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{where}: the image '{image}' is outside the folder of the questions. Copy it "
                "into that folder."
            )
        if path.stat().st_size > _MAX_IMAGE:
            raise InputError(
                f"{where}: the image '{image}' has more than 50 MB. Use a smaller image."
            )
        return path.read_bytes()
    try:
        return base64.b64decode(image.rpartition(",")[2], validate=True)
    except ValueError as error:  # invalid base64
        raise InputError(
            f"{where}: '{image[:80]}' is neither a file in the folder of the questions nor base64. "
            "Paths of images are relative to this folder."
        ) from error
