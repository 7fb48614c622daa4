"""A cache on a different file system than models and results: files cannot be renamed or linked
between them.
"""

import os
import tempfile
from pathlib import Path

import pytest
from crowding import InProcessWorkspace
from killing import undisturbed

SHARED_MEMORY = Path("/dev/shm")  # a separate file system on Linux


@pytest.fixture
def elsewhere(tmp_path):
    """Return a folder on another file system, or skip the test if there is none."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("there is no writable shared memory")
    if SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("temporary files are also in shared memory")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        yield Path(folder)


def results(job):
    """Return the files that a command wrote outside the cache."""
    return {path: held for path, held in job.after.items() if not path.startswith("cache/")}


@pytest.mark.soak
def test_commands_work_with_the_cache_on_a_different_file_system(commands, tmp_path, elsewhere):
    on_two_disks = InProcessWorkspace(tmp_path / "here", elsewhere)
    for together, separate in zip(
        undisturbed(InProcessWorkspace(tmp_path / "here"), tmp_path / "together", commands),
        undisturbed(on_two_disks, tmp_path / "apart", commands),
        strict=True,
    ):
        assert results(together) == results(separate), together.name
        assert together.output == separate.output, together.name
    other_files = [
        path for path in InProcessWorkspace(elsewhere).tree() if not path.startswith("offloaded/")
    ]
    cached = [path for path in together.after if path.startswith("cache/")]
    assert sorted(other_files) == sorted(path.removeprefix("cache/") for path in cached)
    assert any(path.endswith(".safetensors") for path in other_files)
