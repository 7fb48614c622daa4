"""ScienceQA from a folder of parquet files with the fields of the hub data set: questions, images
and the groups of LatentLLM's table 4.
"""

import io

import datasets
import pytest
from PIL import Image

import lrcore
from lrcore.data import load_texts, scienceqa
from lrcore.data.questions import images_of, read_items

FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "question": datasets.Value("string"),
        "choices": [datasets.Value("string")],
        "answer": datasets.Value("int8"),
        "hint": datasets.Value("string"),
        "task": datasets.Value("string"),
        "grade": datasets.Value("string"),
        "subject": datasets.Value("string"),
    }
)


def row(question, answer, subject, grade, hint="", image=None):
    return {
        "image": image,
        "question": question,
        "choices": ["fur", "feathers", "scales"],
        "answer": answer,
        "hint": hint,
        "task": "closed choice",
        "grade": grade,
        "subject": subject,
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with a training and a test split, used instead of the hub data set."""
    (tmp_path / "sqa").mkdir()
    picture = Image.new("RGB", (20, 10), "red")
    rows = [
        row("What does this bird have?", 1, "natural science", "grade3", "A bird.", picture),
        row("Which is it?", 0, "social science", "grade8", image=picture),
        row("Which word fits?", 2, "language science", "grade6"),
        row("What does a cat have?", 0, "natural science", "grade12", "A cat."),
    ]
    for split in ("train", "test"):
        made = datasets.Dataset.from_list(rows, features=FEATURES)
        made.to_parquet(tmp_path / "sqa" / f"{split}-00000-of-00001.parquet")
    monkeypatch.setattr(scienceqa, "NAME", str(tmp_path / "sqa"))
    return tmp_path / "sqa"


def test_questions_have_images_and_groups(folder):
    first, second, third, last = read_items("scienceqa")
    (key,) = images_of([first])
    assert first["question"] == (
        f"<image:{key}>\nContext: A bird.\nQuestion: What does this bird have?\n"
        "(A) fur\n(B) feathers\n(C) scales\nAnswer:"
    )
    assert (first["choices"], first["label"]) == (["A", "B", "C"], 1)
    with Image.open(io.BytesIO(images_of([first])[key])) as image:
        assert image.size == (20, 10)
    groups = [item["groups"] for item in (first, second, third, last)]
    assert groups == [
        ["NAT", "TXT", "IMG", "G1-6"],
        ["SOC", "IMG", "G7-12"],
        ["LAN", "NO", "G1-6"],
        ["NAT", "TXT", "G7-12"],
    ]
    assert "images" not in third
    assert len(read_items("scienceqa", 2)) == 2


def test_calibration_uses_solved_questions_of_the_training_split(folder):
    texts = load_texts("scienceqa")
    assert texts.source == "scienceqa/calibration"
    assert texts.documents[0].endswith("Answer: B")
    assert len(texts.images) == 1  # both questions have the same image


def test_a_data_set_with_other_fields_is_refused(folder):
    made = datasets.Dataset.from_list([{"question": "What?", "answer": 0}])
    made.to_parquet(folder / "test-00000-of-00001.parquet")
    with pytest.raises(lrcore.InputError, match="do not have the fields of ScienceQA"):
        read_items("scienceqa")
