"""Files that are there whole or not at all."""

import pytest

from lrcore.files import draft_of, exchange, write_text


def test_a_file_appears_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "new" / "table.csv"
    write_text(path, "ä\n")
    write_text(path, "b\n")
    assert path.read_bytes() == b"b\n"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "whole")

    def cut_short():
        with draft_of(path) as draft:
            draft.write_text("ha", encoding="utf-8")
            assert path.read_text() == "whole"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        cut_short()
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_two_drafts_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "table.csv"
    with draft_of(path) as one, draft_of(path) as two:
        assert one != two
        one.write_text("one", encoding="utf-8")
        two.write_text("two", encoding="utf-8")
    assert path.read_text() == "one"  # the outer block ended last


def test_a_folder_takes_the_place_of_another(tmp_path):
    draft, folder = tmp_path / "draft", tmp_path / "folder"
    for path in (draft, folder):
        path.mkdir()
        (path / path.name).touch()
    exchange(draft, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "draft"]
