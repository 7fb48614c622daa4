"""Texts in memory, as lists or `datasets.Dataset`, calibrate and are measured on."""

import pytest
from datasets import Dataset

import lrcore

TEXTS = [
    "Tom saw “12” kites.\nThey flew.",
    "One day a girl went to the park. " * 200,
    "The end. " * 90,
]


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        Dataset.from_dict({"text": TEXTS, "number": [1, 2, 3]}),
        [{"story": text, "number": 1} for text in TEXTS],
        (text for text in TEXTS),
    ],
)
def test_they_are_a_file_with_the_same_documents(texts, tmp_path):
    from lrcore.data import load_texts

    name = lrcore.write_texts(texts, tmp_path / "in" / "texts.jsonl")
    assert list(load_texts(f"{name}:all").documents) == TEXTS


def test_a_model_is_calibrated_and_measured_on_them(tiny_llama, tmp_path):
    name = lrcore.write_texts(Dataset.from_dict({"text": TEXTS}), tmp_path / "texts.jsonl")
    recipe = lrcore.Recipe(str(tiny_llama), data=name, samples=2, seq_len=24, ratio=0.1)
    small = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    assert lrcore.evaluate(small, name, samples=2, seq_len=24).tokens == 2 * 23


@pytest.mark.parametrize(
    ("texts", "name", "reason"),
    [
        ([], "a.jsonl", "texts has no rows"),
        ([1, 2], "a.jsonl", "texts: a row is a JSON int"),
        (TEXTS, "a.txt", "Give one that ends in .jsonl"),
    ],
)
def test_what_is_no_text_is_refused(texts, name, reason, tmp_path):
    with pytest.raises(lrcore.InputError, match=reason):
        lrcore.write_texts(texts, tmp_path / name)


def test_a_list_in_the_place_of_a_name_says_how(tiny_llama):
    with pytest.raises(lrcore.InputError, match=r"lrcore\.write_texts") as refused:
        lrcore.Recipe(data=TEXTS)
    assert len(str(refused.value)) < 200
    with pytest.raises(lrcore.InputError, match=r"lrcore\.write_texts"):
        lrcore.evaluate(lrcore.load(str(tiny_llama)), Dataset.from_dict({"text": TEXTS}))
