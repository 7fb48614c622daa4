"""What the sidebar says of the calibration text, and texts that are dropped on it."""

from html import escape

import pytest

import lrcore
from workbench import calibration_text
from workbench.form import input_values
from workbench.polling import state
from workbench.store import Store

RECIPE = lrcore.Recipe("demo-llama", samples=2, seq_len=16)


def test_tokens_and_how_the_text_begins_at_once_and_the_first_window_once_it_was_read(tmp_path):
    store = Store(tmp_path / "runs")
    (shown,) = [one for one in state(store, input_values(RECIPE)) if "32 tokens" in str(one)]
    assert "2 windows of 16" in shown
    head = lrcore.text_head(RECIPE)
    assert f"<b>{calibration_text.BEGINS}</b> {escape(calibration_text.shortened(head))}" in shown
    assert store.peek_dense(RECIPE) is None  # no model was loaded for it
    tokens = store.calibration(RECIPE).tokens
    window = store.dense(RECIPE).tokenizer.decode(tokens[0].tolist())
    shown = calibration_text.note(store, RECIPE)
    assert escape(calibration_text.shortened(window)) in shown
    assert "2 windows of 16" in shown
    assert calibration_text.note(store, None) == ""


def test_the_first_window_of_windows_in_order_is_known_before_anything_is_calibrated(
    tmp_path, story_file
):
    store, recipe = Store(tmp_path), RECIPE.with_(data=str(story_file), sampling="first")
    before = calibration_text.note(store, recipe)
    assert calibration_text.FIRST in before
    store.calibration(recipe)
    assert calibration_text.note(store, recipe) == before


@pytest.mark.parametrize(
    "changed", [{"data": "owner/name"}, {"model": "owner/name"}, {"data": "no such.txt"}]
)
def test_of_what_is_not_here_nothing_is_fetched_and_the_tokens_are_told(tmp_path, changed):
    shown = calibration_text.note(Store(tmp_path), RECIPE.with_(**changed))
    assert shown == "<div class='note about'>32 tokens: 2 windows of 16</div>"


def test_html_in_a_text_stays_text(tmp_path):
    text = tmp_path / "page.txt"
    text.write_text("<img src=x onerror='alert(1)'> it's \"so\". " * 50)
    store, recipe = Store(tmp_path / "runs"), RECIPE.with_(data=str(text), sampling="first")
    store.calibration(recipe)
    shown = calibration_text.note(store, recipe)
    assert "<img" not in shown
    assert "&lt;img" in shown


def test_a_dropped_text_is_kept_and_chosen(tmp_path):
    store, given = Store(tmp_path / "runs"), tmp_path / "my <b> story.txt"
    given.write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    chosen, left = calibration_text.take(store, str(given))
    assert left is None
    assert chosen.startswith(str(tmp_path / "runs"))
    assert chosen.endswith("my-b-story.txt")
    assert "my-b-story.txt · 32 tokens" in calibration_text.note(store, RECIPE.with_(data=chosen))
    given.unlink()  # Gradio's own copy goes with the server
    assert store.calibration(RECIPE.with_(data=chosen)).tokens.shape == (2, 16)
    given.write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    assert calibration_text.take(store, str(given))[0] == chosen
    assert not store.runs.ids()  # it is no run


def test_where_others_reach_the_page_the_place_of_the_runs_stays_unknown(tmp_path):
    store, given = Store(tmp_path / "runs"), tmp_path / "story.txt"
    given.write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    lrcore.confine([tmp_path / "runs"])
    try:
        chosen, _ = calibration_text.take(store, str(given))
        assert not chosen.startswith("/")
        assert store.calibration(RECIPE.with_(data=chosen)).tokens.shape == (2, 16)
    finally:
        lrcore.confine([])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("story.docx", b"PK", r"its extension is '\.docx'"),
        ("story.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_what_holds_no_text_is_refused(name, content, said, tmp_path):
    given = tmp_path / name
    given.write_bytes(content)
    store = Store(tmp_path / "runs")
    with pytest.raises(lrcore.InputError, match=said):
        calibration_text.take(store, str(given))
    assert not (store.runs.folder / calibration_text.FOLDER).exists()
