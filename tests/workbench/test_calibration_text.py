"""The note on the calibration text, and uploads of calibration texts."""

from html import escape

import pytest

import lrcore
from lrcore.compression.calibration.calibrate import preview_text
from lrcore.system.path_access import restrict_paths
from workbench.state.store import Store
from workbench.widgets import calibration_text
from workbench.widgets.form import input_values
from workbench.widgets.polling import state

RECIPE = lrcore.Recipe("demo-llama", samples=2, seq_len=16)


def test_the_note_has_the_number_of_tokens_and_the_first_window_after_calibration(tmp_path):
    store = Store(tmp_path / "runs")
    (note_html,) = [part for part in state(store, input_values(RECIPE)) if "32 tokens" in str(part)]
    assert "2 windows of 16" in note_html
    head = preview_text(RECIPE).beginning
    assert (
        f"<b>{calibration_text.BEGINNING}</b> {escape(calibration_text.shortened(head))}"
        in note_html
    )
    assert store.peek_dense(RECIPE) is None  # the note loads no model
    tokens = store.calibration(RECIPE).tokens
    window = store.dense(RECIPE).tokenizer.decode(tokens[0].tolist())
    note_html = calibration_text.text_note(store, RECIPE)
    assert escape(calibration_text.shortened(window)) in note_html
    assert "2 windows of 16" in note_html
    assert calibration_text.text_note(store, None) == ""


def test_the_first_window_of_sequential_windows_is_known_before_calibration(tmp_path, story_file):
    store = Store(tmp_path)
    recipe = RECIPE.with_(data=str(story_file), sampling="first", method="svd")
    before = calibration_text.text_note(store, recipe)
    assert calibration_text.FIRST_WINDOW in before
    store.calibration(recipe)
    assert calibration_text.text_note(store, recipe) == before


@pytest.mark.parametrize(
    "changed", [{"data": "owner/name"}, {"model": "owner/name"}, {"data": "no such.txt"}]
)
def test_without_local_files_nothing_is_downloaded_and_the_note_has_the_tokens(tmp_path, changed):
    note_html = calibration_text.text_note(Store(tmp_path), RECIPE.with_(**changed))
    assert note_html == "<div class='note about'>32 tokens: 2 windows of 16</div>"


def test_the_note_warns_of_too_few_tokens(tmp_path):
    store, recipe = Store(tmp_path / "runs"), RECIPE.with_(method="svd_llm")
    assert "class='few'" not in calibration_text.text_note(store, recipe)  # no model is loaded
    store.dense(recipe)
    note_html = calibration_text.text_note(store, recipe)
    assert "<p class='few'>The calibration has 32 tokens" in note_html
    assert "Use at least 688 tokens" in note_html
    for changes in ({"method": "svd"}, {"samples": 43}, {"options": {"none": 1}}):
        assert "class='few'" not in calibration_text.text_note(store, recipe.with_(**changes))


def test_html_in_a_text_is_escaped(tmp_path):
    text = tmp_path / "page.txt"
    text.write_text("<img src=x onerror='alert(1)'> it's \"so\". " * 50)
    store, recipe = Store(tmp_path / "runs"), RECIPE.with_(data=str(text), sampling="first")
    store.calibration(recipe)
    note_html = calibration_text.text_note(store, recipe)
    assert "<img" not in note_html
    assert "&lt;img" in note_html


def test_the_note_on_a_short_text_has_its_number_of_tokens(tmp_path):
    store, text = Store(tmp_path / "runs"), tmp_path / "short.txt"
    text.write_text("Once upon a time there was a cat. " * 3, encoding="utf-8")
    recipe = RECIPE.with_(data=str(text))
    tokens = preview_text(recipe).tokens
    assert 16 < tokens < 32
    sizes = [
        (recipe, f"2 windows of 16, from {tokens} tokens"),  # they overlap
        (recipe.with_(sampling="first"), "16 tokens: 1 window of 16"),
        (recipe.with_(seq_len=64), f"{tokens} tokens, fewer than one window of 64"),
    ]
    for number, (chosen, size) in enumerate(sizes):
        assert f"short.txt · {size}" in calibration_text.text_note(store, chosen)
        if number < 2:
            store.calibration(chosen)
            assert f"short.txt · {size}" in calibration_text.text_note(store, chosen)
    with pytest.raises(lrcore.InputError) as refused:
        store.calibration(chosen)
    assert f"windows of at most {tokens} tokens" in str(refused.value)
    assert not {"/", "_"} & set(str(refused.value))  # neither a path nor the name of a field


def test_an_uploaded_text_is_stored_and_selected(tmp_path):
    store, source_file = Store(tmp_path / "runs"), tmp_path / "my <b> story.txt"
    source_file.write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    chosen, field_update = calibration_text.store_upload(store, str(source_file))
    assert field_update is None
    assert chosen.startswith(str(tmp_path / "runs"))
    assert chosen.endswith("my-b-story.txt")
    assert "my-b-story.txt · 32 tokens" in calibration_text.text_note(
        store, RECIPE.with_(data=chosen)
    )
    source_file.unlink()  # Gradio deletes its copy when the server stops
    assert store.calibration(RECIPE.with_(data=chosen)).tokens.shape == (2, 16)
    source_file.write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    assert calibration_text.store_upload(store, str(source_file))[0] == chosen
    assert not store.runs.ids()  # the text is not a run


def test_on_a_network_the_folder_of_the_runs_is_not_disclosed(tmp_path):
    store, source_file = Store(tmp_path / "runs"), tmp_path / "story.txt"
    source_file.write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    restrict_paths([tmp_path / "runs"])
    try:
        chosen, _ = calibration_text.store_upload(store, str(source_file))
        assert not chosen.startswith("/")
        assert store.calibration(RECIPE.with_(data=chosen)).tokens.shape == (2, 16)
    finally:
        restrict_paths([])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("story.docx", b"PK", r"its extension is '\.docx'"),
        ("story.txt", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_an_upload_that_is_not_text_is_refused(name, content, reason, tmp_path):
    source_file = tmp_path / name
    source_file.write_bytes(content)
    store = Store(tmp_path / "runs")
    with pytest.raises(lrcore.InputError, match=reason):
        calibration_text.store_upload(store, str(source_file))
    assert not (store.runs.folder / calibration_text.FOLDER).exists()
