"""A cache that may be read and not written: what is in it is used, and where something has to be
written there, one sentence says so and nothing is lost.
"""

import re
import subprocess
from contextlib import contextmanager

import pytest
from crowding import Here, differing
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
    place, ended, wrong = Here(tmp_path / "here"), {}, []
    for job in undisturbed(place, tmp_path / "states", commands):
        place.start_from(job.before)
        before = place.tree()
        with read_only(place.folder / "cache"):
            done = place.run(job.arguments)
        ended[job.name] = done.returncode
        if done.returncode:
            lines = error_lines(done)
            said = done.returncode == 2 and len(lines) == 1 and re.fullmatch(SENTENCE, lines[0])
            wrong += [] if said else [f"{job.name}: {done.stderr[-300:]}"]
        else:
            shown = place.plain(done.stdout)
            wrong += [] if shown == job.shown else [f"{job.name}: it prints {shown}"]
        wrong += harmed(place, job, before, job.name)
        again = place.run(job.arguments)
        wrong += [f"{job.name}: then {again.stderr[-300:]}"] if again.returncode else []
        wrong += [f"{job.name}: {path} differs" for path in differing(job, place.tree())]
    with capsys.disabled():
        print(f"\n{ended}")
    assert not wrong, "\n".join(wrong)
