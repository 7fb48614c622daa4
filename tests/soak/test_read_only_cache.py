"""A cache that may be read and not written: what is in it is used, and where something has to be
written there, one sentence says so and nothing is lost.
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
def read_only(folder):
    """The folder without the right to write, for root as well. Skips the test where none may mount
    it so.
    """
    bound = subprocess.run(["mount", "--bind", folder, folder], check=False, capture_output=True)
    if bound.returncode:
        pytest.skip("only root may mount a folder")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.soak
def test_every_command_ends_or_says_what_may_not_be_written(commands, tmp_path, capsys):
    workspace, ended, wrong = InProcessWorkspace(tmp_path / "here"), {}, []
    for job in undisturbed(workspace, tmp_path / "states", commands):
        workspace.start_from(job.before)
        before = workspace.tree()
        with read_only(workspace.folder / "cache"):
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
