"""Generated questions about images with one or two colored shapes, or about a sentence on two
things, in the format of ScienceQA.

Groups are the subject of the question ("colour", "shape", "place") and the source of the answer:
"IMG" for the image, "TXT" for the sentence.
"""

import io
import random
from typing import Any

from ..system.errors import InputError, unknown

SIZE = 32  # width and height in pixels
COUNTS = {"calibration": 256, "test": 400, "train": 12_000}
COLORS = {
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
    """Return the first `count` questions of a split ("calibration", "test" or "train"): question,
    choices, label, groups, and for two of three "image", a PNG file of SIZE x SIZE pixels.

    A question does not depend on `count`. Raises InputError for an unknown split.
    """
    if split not in COUNTS:
        raise unknown("split of shapes", split, COUNTS)
    size = COUNTS[split]
    return [_item(random.Random(f"shapes/{split}/{i}")) for i in range(min(count or size, size))]


def _item(draw: random.Random) -> dict[str, Any]:
    subject = draw.choice(("colour", "shape", "place"))
    if draw.random() < 1 / 3 and subject != "shape":
        return _sentence_item(draw, subject)
    kinds = draw.sample(SHAPES, draw.choice((1, 2)))
    colors = draw.sample(sorted(COLORS), len(kinds))
    columns = draw.sample(("left", "right"), 2)
    kind, color, column = kinds[0], colors[0], columns[0]
    question, answer, choices = {
        "colour": (f"What colour is the {kind}?", color, sorted(COLORS)),
        "shape": (f"What is {color}?", kind, list(SHAPES)),
        "place": (f"Where is the {kind}?", column, ["left", "right"]),
    }[subject]
    image = _image(draw, list(zip(kinds, colors, columns, strict=False)))
    return _question("<image>\n", question, answer, choices, [subject, "IMG"]) | {"image": image}


def _sentence_item(draw: random.Random, subject: str) -> dict[str, Any]:
    things, colors = draw.sample(THINGS, 2), draw.sample(sorted(COLORS), 2)
    columns = draw.sample(("left", "right"), 2)
    sentence = " ".join(
        f"The {color} {thing} is on the {column}."
        for thing, color, column in zip(things, colors, columns, strict=True)
    )
    index = draw.randrange(2)
    if subject == "colour":
        question, answer = f"What colour is the {things[index]}?", colors[index]
    else:
        question, answer = f"Where is the {things[index]}?", columns[index]
    choices = sorted(COLORS) if subject == "colour" else ["left", "right"]
    return _question(f"{sentence}\n", question, answer, choices, [subject, "TXT"])


def _question(
    context: str, question: str, answer: str, choices: list[str], groups: list[str]
) -> dict[str, Any]:
    return {
        "question": f"{context}Question: {question}\nAnswer:",
        "choices": choices,
        "label": choices.index(answer),
        "groups": groups,
    }


def _image(draw: random.Random, shapes: list[tuple[str, str, str]]) -> bytes:
    """Return a PNG file of shapes (shape, color, column) at random positions in their columns."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise InputError("Images need Pillow. Run `pip install pillow`.") from error
    picture = Image.new("RGB", (SIZE, SIZE), draw.choice(_GROUNDS))
    pen = ImageDraw.Draw(picture)
    for kind, color, column in shapes:
        size = draw.randint(9, 13)
        left = (column == "right") * _HALF + draw.randint(1, _HALF - size - 1)
        top = draw.randint(1, SIZE - size - 1)
        box = (left, top, left + size, top + size)
        if kind == "circle":
            pen.ellipse(box, COLORS[color])
        elif kind == "square":
            pen.rectangle(box, COLORS[color])
        else:
            corners = [(left, box[3]), (box[2], box[3]), (left + size / 2, top)]
            pen.polygon(corners, COLORS[color])
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
