"""A small data set of questions on images, in the form of ScienceQA and made by rule: one or two
coloured shapes, or a sentence about two things.

Groups are the subject asked for ("colour", "shape", "place") and what says the answer: "IMG" an
image, "TXT" the sentence.
"""

import io
import random
from typing import Any

from lrcore.errors import InputError, unknown

SIZE = 32  # pixels at each side
COUNTS = {"calibration": 256, "test": 400, "train": 12_000}
COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 90, 220),
    "yellow": (240, 200, 20),
}
SHAPES = ("circle", "square", "triangle")
THINGS = ("ball", "cup", "hat", "book", "kite", "box")
_GROUNDS = ((250, 250, 250), (225, 225, 225), (20, 20, 20))
_HALF = SIZE // 2


def items(split: str, count: int | None = None) -> list[dict[str, Any]]:
    """The first `count` questions of a split ("calibration", "test" or "train"): question, choices,
    label, groups, and for two of three "image", the bytes of a PNG file of SIZE x SIZE pixels.

    No question depends on how many are made. Raises InputError for another split.
    """
    if split not in COUNTS:
        raise unknown("split of shapes", split, COUNTS)
    most = COUNTS[split]
    return [_item(random.Random(f"shapes/{split}/{i}")) for i in range(min(count or most, most))]


def _item(draw: random.Random) -> dict[str, Any]:
    subject = draw.choice(("colour", "shape", "place"))
    if draw.random() < 1 / 3 and subject != "shape":
        return _told(draw, subject)
    kinds = draw.sample(SHAPES, draw.choice((1, 2)))
    colours = draw.sample(sorted(COLOURS), len(kinds))
    columns = draw.sample(("left", "right"), 2)
    kind, colour, column = kinds[0], colours[0], columns[0]
    question, answer, choices = {
        "colour": (f"What colour is the {kind}?", colour, sorted(COLOURS)),
        "shape": (f"What is {colour}?", kind, list(SHAPES)),
        "place": (f"Where is the {kind}?", column, ["left", "right"]),
    }[subject]
    image = _drawn(draw, list(zip(kinds, colours, columns, strict=False)))
    return _asked("<image>\n", question, answer, choices, [subject, "IMG"]) | {"image": image}


def _told(draw: random.Random, subject: str) -> dict[str, Any]:
    things, colours = draw.sample(THINGS, 2), draw.sample(sorted(COLOURS), 2)
    columns = draw.sample(("left", "right"), 2)
    told = " ".join(
        f"The {colour} {thing} is on the {column}."
        for thing, colour, column in zip(things, colours, columns, strict=True)
    )
    at = draw.randrange(2)
    if subject == "colour":
        question, answer = f"What colour is the {things[at]}?", colours[at]
    else:
        question, answer = f"Where is the {things[at]}?", columns[at]
    choices = sorted(COLOURS) if subject == "colour" else ["left", "right"]
    return _asked(f"{told}\n", question, answer, choices, [subject, "TXT"])


def _asked(
    before: str, question: str, answer: str, choices: list[str], groups: list[str]
) -> dict[str, Any]:
    return {
        "question": f"{before}Question: {question}\nAnswer:",
        "choices": choices,
        "label": choices.index(answer),
        "groups": groups,
    }


def _drawn(draw: random.Random, shapes: list[tuple[str, str, str]]) -> bytes:
    """A PNG file of shapes, each (shape, colour, column), at random places of their columns."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise InputError("Images need Pillow. Run `pip install pillow`.") from error
    picture = Image.new("RGB", (SIZE, SIZE), draw.choice(_GROUNDS))
    pen = ImageDraw.Draw(picture)
    for kind, colour, column in shapes:
        size = draw.randint(9, 13)
        left = (column == "right") * _HALF + draw.randint(1, _HALF - size - 1)
        top = draw.randint(1, SIZE - size - 1)
        box = (left, top, left + size, top + size)
        if kind == "circle":
            pen.ellipse(box, COLOURS[colour])
        elif kind == "square":
            pen.rectangle(box, COLOURS[colour])
        else:
            corners = [(left, box[3]), (box[2], box[3]), (left + size / 2, top)]
            pen.polygon(corners, COLOURS[colour])
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
