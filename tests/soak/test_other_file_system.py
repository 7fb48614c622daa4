"""A cache on another file system than the folders of models and results: nothing can be renamed or
linked from one to the other.
"""

import os
import tempfile
from pathlib import Path

import pytest
from crowding import InProcessWorkspace
from killing import undisturbed

SHARED_MEMORY = Path("/dev/shm")  # a file system of its own on Linux


@pytest.fixture
def elsewhere(tmp_path):
    """A folder on another file system; skips the test where there is none to write to."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("there is no shared memory to write to")
    if SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("temporary files are in shared memory themselves")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        yield Path(folder)


def results(job):
    """The files that a command left beside the cache."""
    return {path: held for path, held in job.after.items() if not path.startswith("cache/")}


@pytest.mark.soak
def test_every_command_does_the_same(commands, tmp_path, elsewhere):
    apart = InProcessWorkspace(tmp_path / "here", elsewhere)
    for together, separate in zip(
        undisturbed(InProcessWorkspace(tmp_path / "here"), tmp_path / "together", commands),
        undisturbed(apart, tmp_path / "apart", commands),
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
