"""Multiple-choice questions, with or without an image: built in, or rows of a .jsonl file.

A row is {"question", "choices", "label"}. "image" is a file beside it, or base64 of one; it stands
where the question says <image>, before the question otherwise. "groups" names the parts of a table
that the question counts in, such as its subject.
"""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lrcore.data import scienceqa, shapes, stories
from lrcore.data.reading import reading
from lrcore.data.rows import parsed
from lrcore.errors import InputError, shown, unknown
from lrcore.places import place_of

BUILTIN_TASKS = ("stories", "shapes", "scienceqa")
# data sets of calibration that consist of questions, about half of them on an image
PICTURED: Mapping[str, Callable[[str, int | None], list[dict[str, Any]]]] = {
    "shapes": shapes.items,
    "scienceqa": scienceqa.items,
}
PLACE = "<image>"  # where the image stands in a question
_LARGEST = 50_000_000  # bytes of an image's file
# one underscore that begins a word, "so _ always"; a line of underscores is no blank to fill
_BLANK = re.compile(r"(?<!\S)_(?!_)")


def read_items(
    task: str, count: int | None = None, split: stories.Split = "test"
) -> list[dict[str, Any]]:
    """The first `count` items of a built-in task or a .jsonl file, as `with_marker` leaves them.

    split: "calibration" or "test", of what is built in. Raises InputError where the task is
    unknown, or the file is missing, empty or has an invalid line.
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
            'Otherwise needle-TOKENS, or a .jsonl file of {"question", "choices", "label"}.',
        )
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise InputError(
            f"'{path}' has no items. Each line is one JSON object with question, choices and label."
        )
    return [
        _item(line, f"line {number} of '{path}'", path.parent)
        for number, line in enumerate(lines[:count], start=1)
    ]


def has_questions(row: Any) -> bool:
    """Whether a row of a file is a question rather than a text."""
    return isinstance(row, dict) and "text" not in row and {"question", "choices"} <= row.keys()


def solved(item: Mapping[str, Any]) -> str:
    """The question with its right choice."""
    context, text = continuations(item)[int(item["label"])]
    return (context.rstrip() if text[0].isspace() else context) + text


def images_of(items: list[dict[str, Any]]) -> dict[str, bytes]:
    """The files of all images, by the key in their marker."""
    return {key: file for item in items for key, file in item.get("images", {}).items()}


def continuations(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(context, scored text) of each choice."""
    question, choices = item["question"], item["choices"]
    blank = _BLANK.split(question)
    if len(blank) == 2 and blank[1].strip():
        return [(blank[0] + choice, blank[1]) for choice in choices]
    return [(question, choice if choice[0].isspace() else f" {choice}") for choice in choices]


def with_marker(item: dict[str, Any]) -> dict[str, Any]:
    """An item whose "image", bytes of a file, is named in its question: "<image:KEY>", KEY the
    first 16 digits of its sha256; "images" is {KEY: bytes}. One without an image as it is.
    """
    file = item.get("image")
    if file is None:
        return item
    key = hashlib.sha256(file).hexdigest()[:16]
    marker, question = f"<image:{key}>", item["question"]
    question = question.replace(PLACE, marker, 1) if PLACE in question else f"{marker}\n{question}"
    rest = {name: value for name, value in item.items() if name != "image"}
    return rest | {"question": question, "images": {key: file}}


def _item(line: str, where: str, folder: Path) -> dict[str, Any]:
    try:
        item = parsed(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is not valid JSON: {error}. Each line is one object with question, choices "
            "and label."
        ) from error
    fields = item if isinstance(item, dict) else {}
    choices, label = fields.get("choices"), fields.get("label")
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice.strip() for choice in choices)
    ):
        raise InputError(
            f"{where} has no list of at least two choices. An item reads {{'question': ..., "
            f"'choices': [...], 'label': 0}}."
        )
    known = type(label) is int and 0 <= label < len(choices)
    if not isinstance(fields.get("question"), str) or not known:
        raise InputError(
            f"{where}: question must be text and label the right choice's index, 0 to "
            f"{len(choices) - 1}; got {shown(label)}."
        )
    groups = fields.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(one, str) and one for one in groups):
        raise InputError(
            f"{where}: groups must be a list of names, such as ['NAT']; got {shown(groups)}."
        )
    if fields.get("image") is None:
        return fields
    return with_marker(fields | {"image": _image(fields["image"], where, folder)})


def _image(given: Any, where: str, folder: Path) -> bytes:
    """The bytes of an image: of a file in the folder of the questions, or of base64."""
    if not isinstance(given, str):
        raise InputError(
            f"{where}: image must be a file beside the questions, or base64 of one; got "
            f"{type(given).__name__}."
        )
    path = folder / given[:1024]
    if len(given) < 1024 and os.path.isfile(path):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{where}: the image '{given}' lies outside the folder of the questions. Copy it "
                "there."
            )
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{where}: the image '{given}' has more than 50 MB. Make it smaller.")
        return path.read_bytes()
    try:
        return base64.b64decode(given.rpartition(",")[2], validate=True)
    except ValueError as error:  # no base64, or characters that it never has
        raise InputError(
            f"{where}: no file '{given[:80]}' beside the questions, and no base64 of one. Paths of "
            "images start at the folder of the questions."
        ) from error
