"""The held-out tail of a text file, which calibration does not read."""

import json
from dataclasses import replace

import pytest

import lrcore
from lrcore.data import apart_from, held_out, load_texts, overlapping
from lrcore.data.held_out import MIN_CHARACTERS

LINE = "Once upon a time there was a little girl who had a red ball.\n"


@pytest.fixture
def long(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{i} {LINE}" for i in range(2000)))
    return path


def test_calibration_omits_the_last_tenth_which_begins_with_a_line(long) -> None:
    head, tail = load_texts(str(long)), load_texts(f"{long}:test")
    assert head.joined() + tail.joined() == long.read_text()
    assert len(tail.joined()) / len(long.read_text()) == pytest.approx(0.1, abs=0.01)
    assert tail.joined().partition(" ")[0].isdigit()
    assert (head.source, tail.source) == (f"{long}:calibration", f"{long}:test")
    assert tail.part == "its last 10%, held out"
    assert load_texts(str(long), "test").joined() == load_texts(f"{long}:all").joined()
    assert load_texts(str(long), "test").source == str(long)
    assert load_texts(f"{long}:calibration", "test").fingerprint == head.fingerprint


def test_complete_rows_are_held_out(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [f"{i} {LINE}" for i in range(1000)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    head, tail = load_texts(str(path)).documents, load_texts(f"{path}:test").documents
    assert [*head, *tail] == rows
    assert 90 < len(tail) <= 100


def test_a_long_last_row_is_divided(tmp_path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(["short", LINE * 1000]))
    head, tail = load_texts(str(path)).documents, load_texts(f"{path}:test").documents
    assert head[0] == "short"
    assert head[1] + tail[0] == LINE * 1000


@pytest.mark.parametrize("content", ["word " * (MIN_CHARACTERS // 5 * 3), " " * 90_000 + "word"])
def test_a_short_text_is_used_for_calibration_and_test(tmp_path, content) -> None:
    path = tmp_path / "short.txt"
    path.write_text(content)
    calibration, test = load_texts(str(path)), load_texts(f"{path}:test", "test")
    assert calibration.joined() == test.joined() == content
    assert calibration.fingerprint in overlapping(test)
    assert apart_from(test, {calibration.fingerprint}) is test


def test_a_text_is_identified_by_its_content_not_by_its_name(long, tmp_path) -> None:
    seen = {load_texts(str(long)).fingerprint}
    copy = tmp_path / "copy.txt"
    copy.write_text(long.read_text())
    full_text = load_texts(str(copy), "test")
    assert seen < overlapping(full_text)
    tail = apart_from(full_text, seen)
    assert tail.source == f"{copy}:test"
    assert not seen & overlapping(tail)
    # a model calibrated on the complete text has seen its tail, too
    assert full_text.fingerprint in overlapping(tail)
    assert apart_from(full_text, {full_text.fingerprint}) is full_text
    stories = load_texts("stories", "test")
    assert apart_from(stories, seen) is stories
    calibration = load_texts("stories").fingerprint
    assert calibration not in overlapping(stories)
    assert calibration in overlapping(load_texts("stories/calibration", "test"))


def test_held_out_gives_the_name_of_the_omitted_tail(long) -> None:
    names = (str(long), f"{long}:all", "stories", "owner/name:config:test")
    assert [held_out(name) for name in names] == [f"{long}:test"] * 2 + list(names[2:])
    settings = lrcore.EvaluationSettings(str(long), 4)
    assert settings.held_out_from([str(long)]) == replace(settings, data=f"{long}:test")
    assert settings.held_out_from(["stories"]) is settings
    explicit = replace(settings, data=f"{long}:all")
    assert explicit.held_out_from([str(long)]) is explicit
    with pytest.raises(lrcore.InputError, match="Did you mean 'test'"):
        load_texts(f"{long}:tset")
