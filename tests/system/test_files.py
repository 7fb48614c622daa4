"""Atomic writes: files are complete or absent."""

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


def test_a_file_is_written_completely_without_leftovers(tmp_path):
    path = tmp_path / "new" / "table.csv"
    write_text(path, "ä\n")
    write_text(path, "b\n")
    assert path.read_bytes() == b"b\n"
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_file_unchanged(tmp_path):
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


def test_two_drafts_of_a_file_are_separate(tmp_path):
    path = tmp_path / "table.csv"
    with draft_of(path) as first_draft, draft_of(path) as second_draft:
        assert first_draft != second_draft
        first_draft.write_text("one", encoding="utf-8")
        second_draft.write_text("two", encoding="utf-8")
    assert path.read_text() == "one"  # the outer block ended last


def test_cache_keys_are_stable_and_independent_of_the_order_of_mappings():
    """A changed key would invalidate all calibrations on disk."""
    assert cache_key("ab", 2, [1, 0.5], None, ("x", 3)) == "614b419249dab833ebc12bcb"
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1}) != cache_key({"a": 2, "b": 1})


def test_a_folder_replaces_another_one(tmp_path):
    draft, folder = tmp_path / "draft", tmp_path / "folder"
    for path in (draft, folder):
        path.mkdir()
        (path / path.name).touch()
    exchange(draft, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "draft"]


def test_a_folder_replaces_another_one_without_an_atomic_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_swap", lambda first, second: False)
    test_a_folder_replaces_another_one(tmp_path)


def test_the_folder_exists_at_every_moment_of_an_exchange(tmp_path, monkeypatch):
    """The rename fails, as after a kill, and the previous folder is still in its place."""
    for name in ("draft", "folder"):
        (tmp_path / name).mkdir()

    def killed(*names):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_swap", killed)
    with pytest.raises(KeyboardInterrupt):
        exchange(tmp_path / "draft", tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()


def test_drafts_of_killed_processes_are_deleted_and_drafts_in_use_are_not(tmp_path):
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


def test_contents_are_synced_before_the_rename_and_the_rename_before_later_steps(
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
def test_a_draft_deleted_before_it_is_locked_gets_a_different_name(tmp_path, monkeypatch, folder):
    original_try_lock = files.try_lock

    def late(path):
        """Delete the draft before its lock, as a process that takes it for a leftover."""
        monkeypatch.setattr(files, "try_lock", original_try_lock)
        assert files.remove_unlocked(path)
        return original_try_lock(path)

    monkeypatch.setattr(files, "try_lock", late)
    monkeypatch.setattr(files, "remove_leftovers", lambda *_: None)
    if folder:
        with folder_draft_of(tmp_path / "new") as draft:
            (draft / "x").touch()
        assert (tmp_path / "new" / "x").is_file()
    else:
        write_text(tmp_path / "new", "x")
        assert (tmp_path / "new").read_text() == "x"


def test_a_process_folder_survives_a_concurrent_cleanup(tmp_path, monkeypatch):
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
print("created", flush=True)
sys.stdin.read()
"""


def test_folders_of_killed_processes_are_deleted_and_those_of_running_ones_are_not(tmp_path):
    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "created\n"
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


def test_a_home_without_write_permission_moves_the_cache_to_a_temporary_folder(
    tmp_path, monkeypatch, capsys
) -> None:
    """For example in a container whose user has no home."""
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
    Exception("No space left on device (os error 28)"),  # from a library in Rust
    OSError("4096 requested and 512 written"),  # from numpy
]


@pytest.mark.parametrize("error", FULL_DISKS)
@pytest.mark.parametrize("folder", [False, True])
def test_a_full_disk_is_reported_with_the_free_space_and_files_are_unchanged(
    tmp_path, error, folder
):
    path = tmp_path / "model"
    if folder:
        path.mkdir()
    else:
        write_text(path, "whole")

    def fill():
        with (folder_draft_of if folder else draft_of)(path) as draft:
            (draft / "weights" if folder else draft).write_text("ha")
            raise error

    with pytest.raises(InputError, match=r"disk is full \([\d,.]+ [MG]B are free in '") as refusal:
        fill()
    assert f"'{path}' cannot be written" in str(refusal.value)
    assert list(tmp_path.iterdir()) == [path]
    assert folder or path.read_text() == "whole"


def test_a_full_disk_is_reported_if_a_parent_folder_cannot_be_created(tmp_path, monkeypatch):
    def full(path, *_):
        number = errno.ENOSPC if Path(path).parent.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        with pytest.raises(ResourceError, match=r"disk is full \([\d,.]+ [MG]B are free in '"):
            write_text(tmp_path / "sweep" / "cells" / "1.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_a_read_error_during_a_write_is_not_reported_as_a_write_error(tmp_path):
    def read():
        with draft_of(tmp_path / "table.csv"):
            raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/text")

    with pytest.raises(PermissionError):
        read()


def test_a_path_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=r"'.*/file/table.csv' cannot be written: "):
        write_text(tmp_path / "file" / "table.csv", "x")
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ResourceError, match="LRCORE_CACHE to a writable folder"):
        write_text(tmp_path / "file" / "cache" / "probes" / "x.json", "x")


def test_weights_that_exceed_the_disk_space_are_refused_with_their_size(tmp_path):
    """File sizes are limited to a kilobyte."""
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


def test_too_little_memory_is_reported_even_if_the_free_memory_is_unknown(monkeypatch):
    def none():
        raise MemoryError

    monkeypatch.setattr(sys.modules["lrcore.system.memory"], "_limits", none)
    assert str(resource_error(MemoryError())).startswith("Not enough memory. Use")
