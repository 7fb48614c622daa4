"""Texts in memory, as lists, tables or `datasets.Dataset`, for calibration and evaluation."""

import numpy
import pandas
import pyarrow
import pytest
from datasets import Dataset, DatasetDict

import lrcore
from lrcore.system.cache import entries

TEXTS = [
    "Tom saw “12” kites.\nThey flew.",
    "One day a girl went to the park. " * 200,
    "The end. " * 90,
]
DATASET = Dataset.from_dict({"text": TEXTS})


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        Dataset.from_dict({"text": TEXTS, "number": [1, 2, 3]}),
        [{"story": text, "number": 1} for text in TEXTS],
        (text for text in TEXTS),
    ],
)
def test_texts_in_memory_are_written_to_a_file_of_the_same_documents(texts, tmp_path):
    from lrcore.data import load_texts

    name = lrcore.write_texts(texts, tmp_path / "in" / "texts.jsonl")
    assert list(load_texts(f"{name}:all").documents) == TEXTS


class PolarsFrame:
    """Stand-in for a data frame of polars: iterating yields columns."""

    columns = ("text", "number")

    def to_dicts(self):
        return [{"text": text, "number": number} for number, text in enumerate(TEXTS)]

    def to_dict(self):
        return {"text": TEXTS}

    def __iter__(self):
        return iter([TEXTS, [0, 1, 2]])


FRAME = pandas.DataFrame({"text": TEXTS, "number": [1, 2, 3]})


@pytest.mark.parametrize(
    "texts",
    [
        FRAME,
        FRAME[["text"]],
        FRAME.text,
        FRAME.text.astype("category"),
        pandas.Index(TEXTS),
        numpy.array(TEXTS),
        numpy.array(TEXTS, dtype=object),
        pyarrow.table({"text": TEXTS}),
        pyarrow.table({"text": TEXTS}).to_batches()[0],
        pyarrow.array(TEXTS),
        pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
        DATASET.to_iterable_dataset(),
        DATASET["text"],
        *(DATASET.with_format(name) for name in ("numpy", "pandas", "arrow", "torch")),
        PolarsFrame(),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_tables_and_arrays_are_written_to_a_file_of_the_same_documents(texts, tmp_path):
    from lrcore.data import load_texts

    name = lrcore.write_texts(texts, tmp_path / "texts.jsonl")
    assert list(load_texts(f"{name}:all").documents) == TEXTS


@pytest.mark.parametrize(
    "texts",
    [
        pandas.Series([TEXTS[0], None], dtype="string"),
        pandas.DataFrame({"text": [None, TEXTS[0], pandas.NA]}, dtype="string"),
        [{"text": pandas.NaT}, {"text": TEXTS[0]}],
    ],
    ids=["series", "frame", "rows"],
)
def test_missing_values_of_every_type_of_pandas_are_skipped(texts, tmp_path):
    from lrcore.data import load_texts

    name = lrcore.write_texts(texts, tmp_path / "texts.jsonl")
    assert load_texts(f"{name}:all").documents == (TEXTS[0],)


class OtherTable:
    """Table of an unknown library: iterating yields the names of columns."""

    columns = ("text", "number")

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize(
    "texts",
    [
        OtherTable(),
        FRAME.groupby("number"),
        numpy.array([TEXTS, TEXTS]),
        numpy.array(TEXTS[0]),
        numpy.arange(3),
        b"a story",
        None,
        7,
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_other_values_are_refused_in_a_short_sentence(texts, tmp_path):
    with pytest.raises(lrcore.InputError, match=r"^texts") as refused:
        lrcore.write_texts(texts, tmp_path / "texts.jsonl")
    assert len(str(refused.value)) < 120
    assert not list(tmp_path.iterdir())


def test_a_model_is_calibrated_and_evaluated_on_written_texts(tiny_llama, tmp_path):
    name = lrcore.write_texts(Dataset.from_dict({"text": TEXTS}), tmp_path / "texts.jsonl")
    recipe = lrcore.Recipe(str(tiny_llama), data=name, samples=2, seq_len=24, ratio=0.1)
    small = lrcore.compress(lrcore.load(str(tiny_llama)), recipe)
    assert lrcore.evaluate(small, name, samples=2, seq_len=24).tokens == 2 * 23


@pytest.mark.parametrize(
    ("texts", "name", "reason"),
    [
        ([], "a.jsonl", "texts has no rows"),
        ([1, 2], "a.jsonl", "texts: a row is of type int"),
        (TEXTS, "a.txt", "Enter a name with .jsonl"),
    ],
)
def test_rows_without_text_and_other_file_names_are_refused(texts, name, reason, tmp_path):
    with pytest.raises(lrcore.InputError, match=reason):
        lrcore.write_texts(texts, tmp_path / name)


@pytest.mark.parametrize(
    "texts",
    [TEXTS, tuple(TEXTS), [{"story": text, "n": 1} for text in TEXTS], DATASET],
    ids=["list", "tuple", "rows", "dataset"],
)
def test_texts_can_be_passed_instead_of_a_name(texts, tiny_llama):
    dense = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(str(tiny_llama), data=texts, samples=2, seq_len=24, ratio=0.1)
    assert recipe == lrcore.Recipe.from_dict(recipe.to_dict())
    small, windows = lrcore.compress(dense, recipe), {"samples": 2, "seq_len": 24}
    measured = lrcore.evaluate(small, texts, **windows)
    assert measured.tokens == 2 * 23
    assert measured.perplexity == lrcore.evaluate(small, recipe.data, **windows).perplexity
    assert lrcore.compare(dense, small, texts, **windows).kl > 0


def test_equal_texts_are_a_single_file_in_the_cache():
    formatted = [DATASET.with_format(name) for name in ("numpy", "pandas", "arrow")]
    names = {lrcore.Recipe(data=texts).data for texts in (TEXTS, TEXTS[:], DATASET, *formatted)}
    assert len(names) == 1
    (entry,) = [cached for cached in entries() if str(cached.path) in names]
    assert entry.kind == "texts"


@pytest.mark.parametrize("data", [[], [1, 2], {"a": 1}, 7, (text for text in TEXTS), FRAME[:1]])
def test_data_without_texts_is_refused_in_a_short_sentence(data):
    with pytest.raises(lrcore.InputError, match=r"lrcore\.write_texts") as refused:
        lrcore.Recipe(data=data)
    assert len(str(refused.value)) < 250
    assert "\n" not in str(refused.value)


def test_a_mapping_of_splits_is_refused(tmp_path):
    """Iterating over the mapping would give the names of the splits."""
    splits = DatasetDict({"train": DATASET, "test": DATASET})
    with pytest.raises(lrcore.InputError, match=r"list of texts or a datasets\.Dataset"):
        lrcore.Recipe(data=splits)
    for mapping in (splits, dict(splits)):
        with pytest.raises(lrcore.InputError, match="Pass a value of this mapping"):
            lrcore.write_texts(mapping, tmp_path / "a.jsonl")


def test_a_recipe_file_with_a_list_of_texts_is_refused():
    with pytest.raises(lrcore.InputError, match="data must be text"):
        lrcore.Recipe.from_dict({"data": ["a story", "another"]})
