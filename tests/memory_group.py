"""Commands of lrcore in a memory control group, if root may create it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

GROUPS_V1 = Path("/sys/fs/cgroup/memory")
GROUPS_V2 = Path("/sys/fs/cgroup")
LIMITED = """
import sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
from lrcore.cli import main
sys.exit(main(sys.argv[2:]))
"""


def group_of(size: int) -> Iterator[Path]:
    """Yield the folder of a control group with this limit in bytes, or skip the test if it is not
    allowed.
    """
    for root, name in ((GROUPS_V1, "memory.limit_in_bytes"), (GROUPS_V2, "memory.max")):
        folder = root / f"lrcore-test-{os.getpid()}"
        if not (root / "cgroup.procs").exists() or not os.access(root, os.W_OK):
            continue
        folder.mkdir()
        if (folder / name).exists():
            (folder / name).write_text(str(size))
            yield folder
            folder.rmdir()
            return
        folder.rmdir()
    pytest.skip("needs a writable memory control group, as for root")


def run_in(group: Path, arguments: Sequence[object], cache: Path) -> subprocess.CompletedProcess:
    """Run a command of lrcore in a control group."""
    command = [sys.executable, "-c", LIMITED, group, *arguments]
    environment = os.environ | {"LRCORE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
