"""The cache on disk: its limit, and the order of eviction."""

import errno
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

import lrcore
from lrcore.cli import main
from lrcore.compression.calibration import calibrate as calibration_module
from lrcore.compression.evidence.probes import probe
from lrcore.system import cache
from lrcore.system.errors import ResourceError
from lrcore.system.files import cache_folder


@pytest.fixture(autouse=True)
def separate_cache(tmp_path, monkeypatch):
    """Use a separate cache for each test."""
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LRCORE_CACHE_LIMIT", raising=False)


@pytest.fixture
def recipe(tiny_llama, story_file):
    return lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)


def entry(kind, name, size, used):
    """Return a folder of the cache with a file of `size` bytes and a time of last use."""
    folder = cache_folder() / kind / name
    folder.mkdir(parents=True)
    (folder / "x").write_bytes(b"x" * size)
    os.utime(folder, (used, used))
    return folder


def test_the_least_recently_used_entries_are_evicted_first():
    old, new = entry("moments", "b", 100, 1), entry("gguf", "a", 100, 3)
    (cache_folder() / "probes").mkdir()
    file = cache_folder() / "probes" / "c.json"
    file.write_text("[1]")
    os.utime(file, (2, 2))
    assert cache.trim(203) == cache.Removed()
    assert [cached.path for cached in cache.trim(103).entries] == [old]
    assert [cached.path for cached in cache.trim(103).entries] == []
    assert [cached.path for cached in cache.trim(99).entries] == [file, new]
    assert cache.entries() == []


def test_use_postpones_the_eviction_of_an_entry():
    first, second = entry("moments", "a", 10, 1), entry("moments", "b", 10, 2)
    cache.hold(first).release()
    assert [cached.path for cached in cache.trim(10).entries] == [second]


def test_a_held_entry_is_not_evicted():
    old, new = entry("moments", "a", 10, 1), entry("moments", "b", 10, 2)
    lock = cache.hold(old)
    os.utime(old, (1, 1))
    removed = cache.trim(0)
    assert (
        [cached.path for cached in removed.entries],
        [cached.path for cached in removed.held],
    ) == (
        [new],
        [old],
    )
    assert cache.clear().entries == ()
    lock.release()
    assert [cached.path for cached in cache.clear().entries] == [old]


def test_a_folder_evicted_before_it_is_locked_is_created_again(monkeypatch):
    old, original_try_lock = entry("moments", "a", 10, 1), cache.try_lock

    def late(path, *args, **kwargs):
        monkeypatch.setattr(cache, "try_lock", original_try_lock)
        cache.clear()
        return original_try_lock(path, *args, **kwargs)

    monkeypatch.setattr(cache, "try_lock", late)
    lock = cache.hold(old)
    assert list(old.iterdir()) == []
    cache.clear()
    assert old.is_dir()
    lock.release()


def test_a_calibration_in_use_is_kept_with_a_limit_of_zero(recipe, monkeypatch):
    monkeypatch.setenv("LRCORE_CACHE_LIMIT", "0")
    model = lrcore.load(recipe.model)
    calibration = lrcore.calibrate(model, recipe)
    factors = lrcore.factorize(model, calibration, "a3")
    probed = probe(model, factors)  # its file is evicted at once
    assert [cached.kind for cached in cache.entries()] == ["moments"]
    del calibration, factors, probed
    cache.trim()
    assert cache.entries() == []


def test_an_evicted_calibration_is_recomputed_with_equal_moments(recipe):
    model = lrcore.load(recipe.model)
    first = lrcore.calibrate(model, recipe).moments(1)
    assert [cached.kind for cached in cache.clear().entries] == ["moments"]
    recomputed = lrcore.calibrate(model, recipe).moments(1)
    assert all((value == recomputed.values[need]).all() for need, value in first.values.items())


def test_damaged_entries_are_recomputed(recipe):
    model = lrcore.load(recipe.model)
    calibration = lrcore.calibrate(model, recipe)
    factors = probe(model, lrcore.factorize(model, calibration, "a3"))
    for file in [*calibration.folder.iterdir(), *(cache_folder() / "probes").iterdir()]:
        file.write_bytes(file.read_bytes()[:20])
    recomputed = lrcore.calibrate(model, recipe)
    assert recomputed.block_influence == calibration.block_influence
    fresh = probe(model, lrcore.factorize(model, recomputed, "a3"))
    first, second = (measured.evidence.get("probes") for measured in (factors, fresh))
    assert first.dense_loss == second.dense_loss
    for slot, curve in first.curves.items():
        assert curve.increase.equal(second.curves[slot].increase)


def test_without_a_limit_no_entry_is_evicted(monkeypatch):
    entry("moments", "a", 10, 1)
    monkeypatch.setenv("LRCORE_CACHE_LIMIT", "none")
    assert cache.trim() == cache.Removed()


@pytest.mark.parametrize(
    ("text", "size"),
    [("20GB", 20e9), ("1.5 mb", 1.5e6), ("300", 300), ("2T", 2e12), ("none", None), ("0", 0)],
)
def test_sizes_are_parsed(text, size):
    assert cache.read_size(text) == size


@pytest.mark.parametrize("text", ["much", "-1GB", "5XB", "", "1e9", "GB", "nan"])
def test_an_invalid_limit_is_refused_before_any_work(text, recipe, monkeypatch):
    with pytest.raises(lrcore.InputError, match="500MB"):
        cache.read_size(text)
    if text:
        monkeypatch.setenv("LRCORE_CACHE_LIMIT", text)
        monkeypatch.setattr(
            calibration_module, "collect", lambda *_: pytest.fail("work was started")
        )
        with pytest.raises(lrcore.InputError, match="LRCORE_CACHE_LIMIT"):
            lrcore.calibrate(lrcore.load(recipe.model), recipe)


def test_a_cache_that_cannot_be_written_is_reported(recipe, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LRCORE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(lrcore.InputError, match="LRCORE_CACHE to a writable folder"):
        lrcore.calibrate(lrcore.load(recipe.model), recipe)


def test_leftovers_of_killed_processes_are_deleted_at_the_next_eviction():
    folder = entry("moments", "a", 10, 1)
    (folder / ".layer-0000.safetensors.01234567.tmp").touch()
    (cache_folder() / "gguf" / ".b.01234567.tmp").mkdir(parents=True)
    dead = cache_folder() / "offloaded" / "c"
    dead.mkdir(parents=True)
    dead.with_suffix(".lock").touch()
    cache.trim()
    assert [path.name for path in cache_folder().rglob("*") if path.is_file()] == ["x"]
    assert not dead.exists()


def run_json(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_lists_trims_and_clears_the_cache(capsys):
    entry("moments", "a", 3_000_000, 1)
    gguf_entry = entry("gguf", "b", 1_000_000, 2)
    listed = run_json(capsys, "cache")
    rows = {row["kind"]: (row["entries"], row["megabytes"]) for row in listed["kinds"]}
    assert rows["moments"] == (1, 3.0)
    assert rows["gguf"] == (1, 1.0)
    assert rows.keys() == cache.KINDS.keys()
    assert (listed["limit_megabytes"], listed["megabytes"]) == (20_000, 4.0)
    assert main(["cache"]) == 0
    assert str(cache_folder()) in capsys.readouterr().out
    assert run_json(capsys, "cache", "--limit", "2MB")["deleted_megabytes"] == 3.0
    lock = cache.hold(gguf_entry)
    assert run_json(capsys, "cache", "--clear")["in_use_megabytes"] == 1.0
    lock.release()
    assert run_json(capsys, "cache", "--clear")["megabytes"] == 0
    for wrong in (["--clear", "--limit", "1GB"], ["--limit", "much"]):
        assert main(["cache", *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_shipped_entries_are_read_if_the_cache_lacks_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    cached_file, missing_file = (tmp_path / "cache" / "probes" / f"{name}.json" for name in "ab")
    for file in (cached_file, tmp_path / "shipped" / "probes" / cached_file.name):
        file.parent.mkdir(parents=True)
    (tmp_path / "shipped" / "probes" / cached_file.name).write_text("[1]")
    assert (cache.read_value(cached_file), cache.has_value(cached_file)) == ([1], True)
    assert (cache.read_value(missing_file), cache.has_value(missing_file)) == (None, False)
    cached_file.write_text("[2]")
    assert cache.read_value(cached_file) == [2]
    cached_file.write_text("damaged")
    assert cache.read_value(cached_file) == [1]


def test_all_cached_files_have_a_listed_kind():
    source = Path(cache.__file__).parents[1]
    written = {
        name
        for path in source.rglob("*.py")
        for pair in re.findall(
            r'cache_file\("(\w+)"|cache_folder\(\) / "(\w+)"', path.read_text(encoding="utf-8")
        )
        for name in pair
        if name
    }
    assert written == cache.KINDS.keys() - {cache.OFFLOADED}


def test_a_read_only_cache_is_used_and_required_writes_are_reported(
    recipe, tiny_llama, monkeypatch
):
    """The cache was filled by another user, as on a shared disk."""
    dense = lrcore.load(str(tiny_llama))
    before = lrcore.calibrate(dense, recipe)
    folders = [cache_folder(), *(p for p in cache_folder().rglob("*") if p.is_dir())]
    with closed(folders, monkeypatch):
        reloaded = lrcore.calibrate(dense, recipe)
        assert reloaded.key == before.key
        with pytest.raises(ResourceError, match="LRCORE_CACHE to a writable folder"):
            lrcore.calibrate(dense, recipe.with_(seed=1))
    assert lrcore.calibrate(dense, recipe.with_(seed=1)).key != before.key


@contextmanager
def closed(folders, monkeypatch):
    """Make folders read-only; root, who ignores modes, is stopped by patches."""
    for folder in folders:
        folder.chmod(0o555)
    closed_to = {str(folder) for folder in folders}
    make, opening = os.mkdir, os.open

    def refuse(path):
        if os.path.dirname(os.path.abspath(os.fsdecode(path))) in closed_to:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def mkdir(path, *args, **named):
        refuse(path)
        make(path, *args, **named)

    def opened(path, flags, *args, **named):
        if flags & os.O_CREAT:
            refuse(path)
        return opening(path, flags, *args, **named)

    def utime(path, *args, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir)
        patch.setattr(os, "open", opened)
        patch.setattr(os, "utime", utime)
        yield
    for folder in folders:
        folder.chmod(0o755)
