"""Folders of text files, as read by `datasets`."""

import json

import pytest

import lrcore
from lrcore.compression.evidence.joint_probes import target_windows
from lrcore.data import load_test_texts, load_texts
from lrcore.recipes.history import Compressed

LINES = "One day a girl went to the park.\nShe saw a dog.\n" * 60


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text(LINES)
    return folder


def test_a_folder_without_a_test_split_is_evaluated_completely(folder):
    texts = load_test_texts(str(folder))
    assert texts == load_texts(str(folder))
    assert texts.source == f"{folder}:default:train"
    assert len(texts.documents) == 2 * LINES.count("\n")


def test_a_folder_with_a_test_split_is_evaluated_on_it(folder):
    (folder / "test.txt").write_text("Another story.\n")
    (folder / "two.txt").rename(folder / "train.txt")
    assert load_test_texts(str(folder)).documents == ("Another story.",)


def test_a_missing_test_split_of_a_folder_is_reported(folder, monkeypatch):
    for data in (f"{folder}:default:test", f"{folder}::test"):
        with pytest.raises(lrcore.InputError, match="has no split test, only train"):
            load_test_texts(data)
    monkeypatch.chdir(folder.parent)
    with pytest.raises(lrcore.InputError, match="has no split test, only train"):
        load_test_texts(f"{folder.name}+stories")


@pytest.mark.parametrize("names", [("one.md",), ("train.jsonl", "test.csv")])
def test_a_folder_without_a_common_format_is_refused_as_a_folder(names, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in names:
        (folder / name).write_text('{"text": "One day"}\n')
    with pytest.raises(lrcore.InputError, match=r"the folder .*must have the same format"):
        load_texts(str(folder))


def test_a_field_of_a_folder_is_read_by_its_name(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = [{"content": "One", "other": "x"}, {"content": None, "other": "y"}]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name in (f"{folder}#content", f"{folder}:default:train#content"):
        texts = load_texts(name)
        assert (texts.documents, texts.skipped) == (("One",), 1)
        assert texts.source == f"{folder}:default:train#content"
    with pytest.raises(lrcore.InputError, match="Did you mean 'content'"):
        load_texts(f"{folder}#contend")


def test_a_model_is_calibrated_and_evaluated_on_a_folder(folder, tiny_llama):
    dense = lrcore.load(str(tiny_llama))
    windows = {"samples": 2, "seq_len": 24}
    recipe = lrcore.Recipe(str(tiny_llama), data=str(folder), ratio=0.1, **windows)
    small = lrcore.compress(dense, recipe)
    assert small.step(Compressed).calibration["source"] == f"{folder}:default:train"
    measured = lrcore.evaluate(small, str(folder), **windows)
    assert measured.tokens == 2 * 23
    assert measured.protocol["on_calibration_text"]
    assert "on_calibration_text" not in lrcore.evaluate(dense, str(folder), **windows).protocol


def test_predictions_do_not_measure_on_the_calibration_text(folder, tiny_llama):
    dense = lrcore.load(str(tiny_llama))
    recipe = lrcore.Recipe(str(tiny_llama), data=str(folder), samples=2, seq_len=24)
    assert target_windows(dense, recipe) is None
    (folder / "test.txt").write_text(LINES)
    (folder / "two.txt").rename(folder / "train.txt")
    name, windows = target_windows(dense, recipe)
    assert name == str(folder)
    assert windows.shape[1] == 24
