"""Free memory, and allocations that are refused in advance."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from memory_group import group_of, run_in

import lrcore
from lrcore.compression.calibration import calibrate
from lrcore.compression.solve import factorize
from lrcore.models import load
from lrcore.models.weights import converted_bytes, weight_files
from lrcore.system import memory
from lrcore.system.errors import ResourceError
from lrcore.system.hardware import Hardware
from lrcore.system.tensor_files import memory_of, stored_in


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_limits_of_cgroups_version_2_include_all_parents(tmp_path):
    (tmp_path / "own").write_text("0::/user.slice/job.scope\n")
    mount = tmp_path / "mount"
    stat = "anon 700\ninactive_file 200\nactive_file 100"
    group(
        mount / "user.slice" / "job.scope",
        memory__max=4000,
        memory__current=1000,
        memory__stat=stat,
    )
    group(mount / "user.slice", memory__max="max", memory__current=9000, memory__stat=stat)
    group(mount, memory__max=50000, memory__current=20000, memory__stat="anon 1")
    assert list(memory.group_limits(tmp_path / "own", mount)) == [(3200, 4000), (30000, 50000)]


def test_file_pages_count_as_free_in_cgroups_version_1(tmp_path):
    (tmp_path / "own").write_text("5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n")
    mount = tmp_path / "mount"
    sizes = {"memory__limit_in_bytes": 3000, "memory__usage_in_bytes": 2500}
    group(mount / "memory" / "a" / "b", **sizes, memory__stat="cache 9\ntotal_inactive_file 1500")
    assert list(memory.group_limits(tmp_path / "own", mount)) == [(2000, 3000)]


def test_a_container_finds_its_cgroup_under_the_mount(tmp_path):
    """The process knows the name of its group on the host, which does not exist in the
    container.
    """
    (tmp_path / "own").write_text("4:memory:/docker/0123\n")
    mount = tmp_path / "mount"
    sizes = {"memory__limit_in_bytes": 3000, "memory__usage_in_bytes": 500}
    group(mount / "memory", **sizes, memory__stat="")
    assert list(memory.group_limits(tmp_path / "own", mount)) == [(2500, 3000)]


def test_a_cgroup_without_readable_files_has_no_limit(tmp_path):
    (tmp_path / "own").write_text("no line of a group\n")
    assert list(memory.group_limits(tmp_path / "none", tmp_path)) == []
    assert list(memory.group_limits(tmp_path / "own", tmp_path)) == []


def test_weights_that_are_converted_are_refused_without_enough_memory(tiny_llama, monkeypatch):
    """Other weights are mapped from their file, which needs no permanent memory."""
    stored = stored_in(weight_files(tiny_llama))
    numbers = sum(t.numel() for t in lrcore.load(str(tiny_llama)).network.parameters())
    assert converted_bytes(stored, torch.float32) == converted_bytes(stored, "auto") == 0
    assert converted_bytes(stored, torch.bfloat16) == 2 * numbers
    monkeypatch.setattr(load, "free_memory", lambda: 2 * numbers - 1)
    with pytest.raises(ResourceError, match=r"read as bfloat16, take .* are free\. Choose"):
        lrcore.load(str(tiny_llama), dtype="bfloat16")
    assert lrcore.load(str(tiny_llama)).dtype == "float32"
    assert lrcore.load(str(tiny_llama), dtype="bfloat16", offload=True).offloaded


def test_hidden_states_larger_than_the_free_memory_are_refused(tiny_llama, story_file, monkeypatch):
    model = lrcore.load(str(tiny_llama))
    few = Hardware("CPU", "", 10**6, 10**9)
    monkeypatch.setattr(calibrate, "hardware", lambda device: few)
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=10**6, seq_len=64)
    with pytest.raises(ResourceError, match=r"1,000,000 windows .* 1\.0 MB are free\. Use fewer"):
        lrcore.calibrate(model, recipe)


def test_factors_larger_than_the_free_memory_are_refused_after_the_first_layer(
    tiny_llama, story_file, monkeypatch
):
    """Factors of all layers remain in memory; those of an offloaded model are on disk."""
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
    model, done = lrcore.load(str(tiny_llama)), []
    calibration = lrcore.calibrate(model, recipe)
    monkeypatch.setattr(factorize, "hardware", lambda device: Hardware("CPU", "", 1000, 10**9))
    with pytest.raises(
        ResourceError, match=r"The factors of the remaining layers, 2 times .* Offload the"
    ):
        lrcore.factorize(model, calibration, "svd_llm", lambda *at: done.append(at))
    assert max(number for _, number, _ in done) <= 1
    away = lrcore.load(str(tiny_llama), offload=True)
    assert lrcore.factorize(away, lrcore.calibrate(away, recipe), "svd_llm").layers


def test_factors_larger_than_the_free_disk_space_are_refused_after_the_first_layer(
    tiny_llama, story_file, monkeypatch
):
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16)
    model, done = lrcore.load(str(tiny_llama), offload=True), []
    calibration = lrcore.calibrate(model, recipe)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(
        ResourceError,
        match=r"2 times .* of disk; 0\.0 MB are free in .* Set LRCORE_CACHE",
    ):
        lrcore.factorize(model, calibration, "svd_llm", lambda *at: done.append(at))
    assert max(number for _, number, _ in done) <= 1


def test_weights_shared_by_factors_and_model_are_counted_once():
    weight = torch.zeros(4, 5)
    assert list(memory_of({"a": weight.mT, "b": [weight[2:], weight]}).values()) == [80]


@pytest.fixture
def small_group():
    """Return a control group of 600 MB, if root may create it."""
    yield from group_of(600 * 2**20)


def test_a_model_too_large_for_its_control_group_is_refused(
    small_group, tiny_llama, story_file, tmp_path
):
    """The weights of 16 bits are loaded in float32 by default."""
    model = lrcore.load(str(tiny_llama))
    config = model.network.config
    config.vocab_size, config.hidden_size = 200_000, 1024
    with torch.device("meta"):
        large = type(model.network)(config).bfloat16()
    large.to_empty(device="cpu")  # the values are never read
    large.tie_weights()
    large.save_pretrained(tmp_path / "large")
    for file in tiny_llama.glob("token*"):
        (tmp_path / "large" / file.name).write_bytes(file.read_bytes())
    arguments = ["compress", tmp_path / "large", "--out", tmp_path / "out", "--json"]
    arguments += ["--data", story_file, "--samples", "2", "--seq-len", "16"]
    done = run_in(small_group, arguments, tmp_path / "cache")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "The weights in" in done.stderr
    assert "are free" in done.stderr
    assert not (tmp_path / "out").exists()
