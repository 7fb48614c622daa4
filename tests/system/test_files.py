"""Files that are there whole or not at all."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lrcore.system import files
from lrcore.system.errors import InputError, ResourceError
from lrcore.system.files import (
    cache_key,
    draft_of,
    exchange,
    folder_draft_of,
    process_folder,
    write_text,
)
from lrcore.system.resource_errors import resource_error
from lrcore.system.tensor_files import write_tensors


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
    with draft_of(path) as first_draft, draft_of(path) as second_draft:
        assert first_draft != second_draft
        first_draft.write_text("one", encoding="utf-8")
        second_draft.write_text("two", encoding="utf-8")
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


def test_a_folder_takes_the_place_of_another_where_two_names_cannot_be_exchanged(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "_swap", lambda one, other: False)
    test_a_folder_takes_the_place_of_another(tmp_path)


def test_there_is_a_folder_at_every_moment_of_an_exchange(tmp_path, monkeypatch):
    """A rename that did not come, as after a kill: the earlier folder is in its place."""
    for name in ("draft", "folder"):
        (tmp_path / name).mkdir()

    def killed(*names):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_swap", killed)
    with pytest.raises(KeyboardInterrupt):
        exchange(tmp_path / "draft", tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()


def test_drafts_of_killed_processes_go_with_the_next_and_those_being_written_stay(tmp_path):
    path, folder = tmp_path / "table.csv", tmp_path / "model"
    unrelated = [
        tmp_path / name for name in (".table.csv", ".table.csv.tmp", ".other.csv.00000000.tmp")
    ]
    (tmp_path / ".table.csv.01234567.tmp").touch()
    (tmp_path / ".model.01234567.tmp").mkdir()
    for file in unrelated:
        file.touch()
    with draft_of(path) as file_draft:
        write_text(path, "two")
        assert file_draft.exists()
        file_draft.write_text("one")
    with folder_draft_of(folder) as draft:
        (draft / "weights").write_text("w")
        with folder_draft_of(folder) as faster:
            (faster / "weights").write_text("faster")
        assert draft.is_dir()
    assert path.read_text() == "one"
    assert (folder / "weights").read_text() == "w"
    assert sorted(tmp_path.iterdir()) == sorted([path, folder, *unrelated])


def test_contents_are_on_the_disk_before_the_name_and_the_name_before_what_follows(
    tmp_path, monkeypatch
):
    order = []
    synced, replaced, renamed = files.to_disk, Path.replace, Path.rename

    def recording(name, real):
        def run(path, *arguments):
            order.append((name, path.name.split(".")[1] if path.name[0] == "." else path.name))
            return real(path, *arguments)

        return run

    monkeypatch.setattr(files, "to_disk", recording("sync", synced))
    monkeypatch.setattr(Path, "replace", recording("rename", replaced))
    monkeypatch.setattr(Path, "rename", recording("rename", renamed))
    write_text(tmp_path / "new" / "table", "x")
    folder_name = tmp_path.name
    assert order == [("sync", folder_name), ("sync", "table"), ("rename", "table"), ("sync", "new")]
    order.clear()
    with folder_draft_of(tmp_path / "model") as draft:
        (draft / "inside").mkdir()
        (draft / "inside" / "weights").touch()
    inside = [("sync", "inside"), ("sync", "weights"), ("sync", "model")]
    assert order == [*inside, ("rename", "model"), ("sync", folder_name)]


@pytest.mark.parametrize("folder", [False, True])
def test_a_draft_that_is_cleaned_up_before_it_is_locked_gets_another_name(
    tmp_path, monkeypatch, folder
):
    original_try_lock = files.try_lock

    def late(path):
        """Another process takes the draft for a leftover between its making and its lock."""
        monkeypatch.setattr(files, "try_lock", original_try_lock)
        assert files.remove_unlocked(path)
        return original_try_lock(path)

    monkeypatch.setattr(files, "try_lock", late)
    monkeypatch.setattr(files, "remove_leftovers", lambda *given: None)
    if folder:
        with folder_draft_of(tmp_path / "new") as draft:
            (draft / "x").touch()
        assert (tmp_path / "new" / "x").is_file()
    else:
        write_text(tmp_path / "new", "x")
        assert (tmp_path / "new").read_text() == "x"


def test_a_new_process_keeps_its_folder_where_another_cleans_up_at_the_same_moment(
    tmp_path, monkeypatch
):
    original_try_lock = files.try_lock

    def late(path):
        monkeypatch.setattr(files, "try_lock", original_try_lock)
        files.remove_dead(tmp_path)
        return original_try_lock(path)

    monkeypatch.setattr(files, "try_lock", late)
    folder = process_folder(tmp_path)
    files.remove_dead(tmp_path)
    assert folder.is_dir()
    assert folder.with_suffix(".lock").is_file()


HOLD = """
import sys
from pathlib import Path
from lrcore.system.files import process_folder
(process_folder(Path(sys.argv[1])) / "x").write_text("x")
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
    (leftover,) = tmp_path.glob("*/x")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert leftover.exists()
    living = start()
    assert not leftover.exists()
    folder = process_folder(tmp_path)
    assert process_folder(tmp_path) == folder
    assert folder.is_dir()
    assert len(list(tmp_path.glob("*/x"))) == 1
    living.communicate("", timeout=20)
    assert list(tmp_path.glob("*/x")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_home_that_cannot_be_written_leaves_the_cache_among_temporary_files(
    tmp_path, monkeypatch, capsys
) -> None:
    """As in a container that runs as a user of no home."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir(), temporary.mkdir()
    monkeypatch.delenv("LRCORE_CACHE")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(files.os, "access", lambda path, mode: Path(path) != home)
    first = files.cache_folder()
    assert (first.parent, first.stat().st_mode & 0o777) == (temporary, 0o700)
    assert files.cache_folder() == first
    assert capsys.readouterr().err.count(f"'{first}'") == 1
    monkeypatch.undo()
    monkeypatch.delenv("LRCORE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(temporary))
    assert files.cache_folder() == temporary / ".cache" / "lrcore"
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path))
    assert files.cache_folder() == tmp_path


FULL_DISKS = [
    OSError(errno.ENOSPC, "No space left on device"),
    Exception("No space left on device (os error 28)"),  # of a library in Rust
    OSError("4096 requested and 512 written"),  # of numpy
]


@pytest.mark.parametrize("error", FULL_DISKS)
@pytest.mark.parametrize("folder", [False, True])
def test_a_full_disk_is_said_with_what_is_free_and_leaves_what_was_there(tmp_path, error, folder):
    path = tmp_path / "model"
    if folder:
        path.mkdir()
    else:
        write_text(path, "whole")

    def fill():
        with (folder_draft_of if folder else draft_of)(path) as draft:
            (draft / "weights" if folder else draft).write_text("ha")
            raise error

    with pytest.raises(InputError, match=r"disk is full \([\d,.]+ MB are free in '") as refusal:
        fill()
    assert f"'{path}' cannot be written" in str(refusal.value)
    assert list(tmp_path.iterdir()) == [path]
    assert folder or path.read_text() == "whole"


def test_a_full_disk_is_said_with_what_is_free_where_a_folder_above_cannot_be_made(
    tmp_path, monkeypatch
):
    def full(path, *_):
        number = errno.ENOSPC if Path(path).parent.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        with pytest.raises(ResourceError, match=r"disk is full \([\d,.]+ MB are free in '"):
            write_text(tmp_path / "sweep" / "cells" / "1.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_meanwhile_is_not_taken_for_a_disk_that_is_closed(tmp_path):
    def read():
        with draft_of(tmp_path / "table.csv"):
            raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/text")

    with pytest.raises(PermissionError):
        read()


def test_a_place_that_takes_no_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"'.*/file/table.csv' cannot be written: "):
        write_text(tmp_path / "file" / "table.csv", "x")
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ResourceError, match="LRCORE_CACHE to a writable folder"):
        write_text(tmp_path / "file" / "cache" / "probes" / "x.json", "x")


def test_weights_for_which_there_is_no_room_are_refused_with_what_they_need(tmp_path):
    """No file may grow beyond a kilobyte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(ResourceError, match=r"\(2\.0 MB are needed, "),
            draft_of(tmp_path / "x") as at,
        ):
            write_tensors(at, {"weight": torch.zeros(500_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_said_where_even_what_is_free_cannot_be_read(monkeypatch):
    def none():
        raise MemoryError

    monkeypatch.setattr(sys.modules["lrcore.system.memory"], "_limits", none)
    assert str(resource_error(MemoryError())).startswith("Not enough memory. Use")
