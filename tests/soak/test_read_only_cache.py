"""A read-only cache: its entries are used, and a required write fails with one error line and
without loss of data.
"""

import re
import subprocess
from contextlib import contextmanager

import pytest
from crowding import InProcessWorkspace, differing
from killing import error_lines, harmed, undisturbed

SENTENCE = (
    r"error: The cache '.*/cache' cannot be written: Read-only file system\. "
    r"Set LRCORE_CACHE to a writable folder\."
)


@contextmanager
def mounted_read_only(folder):
    """Mount the folder read-only, for root as well, or skip the test if this is not allowed."""
    bound = subprocess.run(["mount", "--bind", folder, folder], check=False, capture_output=True)
    if bound.returncode:
        pytest.skip("only root may mount a folder")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.soak
def test_commands_with_a_read_only_cache_end_or_report_it(commands, tmp_path, capsys):
    workspace, ended, wrong = InProcessWorkspace(tmp_path / "here"), {}, []
    for job in undisturbed(workspace, tmp_path / "states", commands):
        workspace.start_from(job.before)
        before = workspace.tree()
        with mounted_read_only(workspace.folder / "cache"):
            done = workspace.run(job.arguments)
        ended[job.name] = done.returncode
        if done.returncode:
            lines = error_lines(done)
            is_refused = (
                done.returncode == 2 and len(lines) == 1 and re.fullmatch(SENTENCE, lines[0])
            )
            wrong += [] if is_refused else [f"{job.name}: {done.stderr[-300:]}"]
        else:
            output = workspace.plain(done.stdout)
            wrong += [] if output == job.output else [f"{job.name}: it prints {output}"]
        wrong += harmed(workspace, job, before, job.name)
        repeated = workspace.run(job.arguments)
        wrong += [f"{job.name}: then {repeated.stderr[-300:]}"] if repeated.returncode else []
        wrong += [f"{job.name}: {path} differs" for path in differing(job, workspace.tree())]
    with capsys.disabled():
        print(f"\n{ended}")
    assert not wrong, "\n".join(wrong)
