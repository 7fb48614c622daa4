"""ScienceQA (Lu et al. 2022) from the hub: questions on three school subjects, half of them with an
image. LatentLLM uses the training split for calibration and the test split for evaluation.
"""

from typing import Any

from ..system.errors import InputError
from . import hub

NAME = "derek-thomas/ScienceQA"
SPLITS = {"calibration": "train", "train": "train", "test": "test"}
SUBJECTS = {"natural science": "NAT", "social science": "SOC", "language science": "LAN"}
LETTERS = "ABCDEFGH"


def items(split: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the first `count` questions of a split: question, choices (letters), label, groups,
    and "image" (bytes of a file) if the question has an image.

    The groups of LatentLLM's table 4 are subject (NAT, SOC, LAN), context (TXT: text, IMG: image,
    NO: neither) and grade (G1-6, G7-12). Raises InputError if the data set cannot be read or has
    other fields.
    """
    rows = hub.rows(NAME, None, SPLITS[split], count)
    try:
        return [_item(row) for row in rows]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(
            f"The rows of {NAME} do not have the fields of ScienceQA ({error!r}). Use a .jsonl "
            "file of questions."
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
    contexts = [name for name, exists in (("TXT", text), ("IMG", image)) if exists] or ["NO"]
    grade = int(str(row["grade"]).removeprefix("grade"))
    return [SUBJECTS[row["subject"]], *contexts, "G1-6" if grade <= 6 else "G7-12"]
