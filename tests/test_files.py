"""Files that are there whole or not at all."""

import signal
import subprocess
import sys

import pytest

from lrcore.files import cache_key, draft_of, exchange, folder_of_this_process, write_text


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


def test_keys_stay_what_they_were_and_the_order_of_a_mapping_does_not_count():
    """A key that changes would make every calibration on disk anew."""
    assert cache_key("ab", 2, [1, 0.5], None, ("x", 3)) == "614b419249dab833ebc12bcb"
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1}) != cache_key({"a": 2, "b": 1})


def test_a_folder_takes_the_place_of_another(tmp_path):
    draft, folder = tmp_path / "draft", tmp_path / "folder"
    for path in (draft, folder):
        path.mkdir()
        (path / path.name).touch()
    exchange(draft, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "draft"]


HOLD = """
import sys
from pathlib import Path
from lrcore.files import folder_of_this_process
(folder_of_this_process(Path(sys.argv[1])) / "x").write_text("x")
print("there", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_and_the_living_keep_theirs(tmp_path):
    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "there\n"
        return process

    killed = start()
    (left,) = tmp_path.glob("*/x")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.exists()
    living = start()
    assert not left.exists()
    own = folder_of_this_process(tmp_path)
    assert folder_of_this_process(tmp_path) == own
    assert own.is_dir()
    assert len(list(tmp_path.glob("*/x"))) == 1
    living.communicate("", timeout=20)
    assert list(tmp_path.glob("*/x")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [own.name, f"{own.name}.lock"]
