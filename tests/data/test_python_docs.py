"""Documentation of the Python standard library as text: split by module, parsed but not
imported.
"""

import sys

import pytest

from lrcore.data import python_docs
from lrcore.system.errors import InputError


def test_splits_are_disjoint_and_long_enough():
    splits = {split: set(python_docs.documents(split)) for split in python_docs.SPLITS}
    assert all(sum(map(len, texts)) > 50_000 for texts in splits.values())
    assert not splits["train"] & splits["test"]
    assert not splits["train"] & splits["calibration"]
    assert not splits["calibration"] & splits["test"]
    assert sum(map(len, splits["train"])) > 3 * sum(map(len, splits["test"]))


def test_the_split_depends_on_the_name_only():
    assert [python_docs.split_of(name) for name in ("argparse", "json.decoder", "heapq")] == [
        "train",
        "train",
        "train",
    ]
    names = [f"module{i}" for i in range(2000)]
    assert 100 < sum(python_docs.split_of(name) == "test" for name in names) < 300


def test_documented_modules_are_not_imported():
    python_docs.documents("train")
    assert not {"antigravity", "this", "turtle", "idlelib"} & set(sys.modules)


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match="Unknown python-docs split 'valid'"):
        python_docs.documents("valid")
