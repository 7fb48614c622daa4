"""Folders of text files, as read by `datasets`."""

import gzip
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


def test_markdown_files_of_a_folder_are_read_also_beside_text_files(folder):
    (folder / "two.txt").rename(folder / "[2] two*.md")
    (folder / "README.md").write_text("The card of the data set.\n")
    (folder / "image.png").write_bytes(b"\x89PNG")
    for name in (str(folder), f"{folder}:default:train"):
        texts = load_texts(name)
        assert len(texts.documents) == 2 * LINES.count("\n")
        assert texts.remarks == {}
    (folder / "one.txt").unlink()
    assert len(load_texts(str(folder)).documents) == LINES.count("\n")


def test_markdown_files_have_splits_by_name(folder):
    (folder / "one.txt").rename(folder / "train.md")
    (folder / "two.txt").rename(folder / "test.txt")
    (folder / "test.txt").write_text("Another story.\n")
    assert load_test_texts(str(folder)).documents == ("Another story.",)
    assert len(load_texts(str(folder)).documents) == LINES.count("\n")


def test_a_card_selects_the_markdown_files(folder):
    card = "---\nconfigs:\n- config_name: default\n  data_files: one.txt\n---\n"
    (folder / "README.md").write_text(card)
    (folder / "two.txt").rename(folder / "two.md")
    texts = load_texts(str(folder))
    assert len(texts.documents) == LINES.count("\n")


@pytest.mark.parametrize("other", ["notes.md", "notes.txt", "notes.csv"])
def test_files_of_another_format_are_counted(other, tmp_path, tiny_llama):
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = "".join(json.dumps({"text": line}) + "\n" for line in LINES.splitlines())
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(rows)
    (folder / other).write_text("a note\n")
    texts = load_texts(str(folder))
    assert len(texts.documents) == 2 * LINES.count("\n")
    assert texts.remarks == {"unread_files": 1}
    model = lrcore.load(str(tiny_llama))
    measured = lrcore.evaluate(model, str(folder), samples=2, seq_len=24)
    assert measured.protocol["unread_files"] == 1


ROWS = [{"content": "One", "other": "x"}, {"content": None, "other": "y"}]
JSON_LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
TABLES = {
    "train.csv": b"content,other\nOne,x\n,y\n",
    "train.ndjson": JSON_LINES,
    "train.jsonl.gz": gzip.compress(JSON_LINES, mtime=0),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_folder_of_tables_is_read_by_field(name, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / name).write_bytes(TABLES[name])
    texts = load_test_texts(f"{folder}#content")
    assert (texts.documents, texts.skipped) == (("One",), 1)


def test_a_folder_without_a_common_format_is_refused_as_a_folder(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("train.jsonl", "test.csv"):
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
