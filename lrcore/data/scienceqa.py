"""ScienceQA (Lu et al. 2022), of the hub: questions of three school subjects, about half of them
with an image. LatentLLM calibrates on its training split and measures on its test split.
"""

from typing import Any

from lrcore.data import hub
from lrcore.errors import InputError

NAME = "derek-thomas/ScienceQA"
SPLITS = {"calibration": "train", "train": "train", "test": "test"}
SUBJECTS = {"natural science": "NAT", "social science": "SOC", "language science": "LAN"}
LETTERS = "ABCDEFGH"


def items(split: str, count: int | None = None) -> list[dict[str, Any]]:
    """The first `count` questions of a split: question, choices (the letters), label, groups, and
    "image", the bytes of a file, of those that have one.

    Groups are those of LatentLLM's table 4: the subject (NAT, SOC, LAN), what the question comes
    with (TXT, a text; IMG, an image; NO, neither), and the grade (G1-6, G7-12).
    Raises InputError where the data set cannot be read, or has other fields.
    """
    rows = hub.rows(NAME, None, SPLITS[split], count)
    try:
        return [_item(row) for row in rows]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(
            f"The rows of {NAME} have other fields than ScienceQA's ({error!r}). Give a .jsonl "
            "file of questions instead."
        ) from error


def _item(row: dict[str, Any]) -> dict[str, Any]:
    hint, choices, image = (row["hint"] or "").strip(), list(row["choices"]), row["image"]
    listed = "\n".join(f"({LETTERS[i]}) {choice}" for i, choice in enumerate(choices))
    context = f"Context: {hint}\n" if hint else ""
    item = {
        "question": f"{context}Question: {row['question']}\n{listed}\nAnswer:",
        "choices": list(LETTERS[: len(choices)]),
        "label": int(row["answer"]),
        "groups": _groups(row, bool(hint), image is not None),
    }
    return item if image is None else item | {"image": image["bytes"]}


def _groups(row: dict[str, Any], text: bool, image: bool) -> list[str]:
    contexts = [name for name, there in (("TXT", text), ("IMG", image)) if there] or ["NO"]
    grade = int(str(row["grade"]).removeprefix("grade"))
    return [SUBJECTS[row["subject"]], *contexts, "G1-6" if grade <= 6 else "G7-12"]
