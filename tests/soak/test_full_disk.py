"""A disk that is full at any write: one error line, no incomplete files, and success of the same
command after space is freed. The long form (`make soak`) fails each write of each command, and
fills a separate disk.
"""

import os
import random
import subprocess
from contextlib import contextmanager

import pytest
from crowding import KINDS, InProcessWorkspace, crowded, differing, refused
from killing import harmed, undisturbed

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
LIMITS = 12  # file size limits per command in the long form


def test_a_full_disk_is_reported_in_one_line_and_changes_no_files(commands, tmp_path):
    chosen = {name: commands[name] for name in ("compress", "replace")}
    workspace, chance = InProcessWorkspace(tmp_path / "here"), random.Random(17)
    wrong = []
    for job in undisturbed(workspace, tmp_path / "states", chosen):
        for kind, event_count in zip(KINDS, job.events.values(), strict=True):
            wrong += crowded(workspace, job, kind, chance.randrange(1, event_count))
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_commands_with_a_full_disk_at_each_write(commands, tmp_path, capsys):
    workspace, chance, count, wrong = (
        InProcessWorkspace(tmp_path / "here"),
        random.Random(SEED),
        0,
        [],
    )
    for job in undisturbed(workspace, tmp_path / "states", commands):
        names, largest = job.events.values()
        sizes = chance.sample(range(1, largest), min(LIMITS, largest - 1))
        faults = [("names", at) for at in range(1, names + 1)] + [("bytes", at) for at in sizes]
        for kind, at in faults:
            wrong += crowded(workspace, job, kind, at)
        count += len(faults)
    with capsys.disabled():
        print(f"\nseed {SEED}: {count} faults of {len(commands)} commands")
    assert not wrong, "\n".join(wrong)


@contextmanager
def disk(folder, megabytes):
    """Mount a separate file system in memory, or skip the test if this is not allowed."""
    folder.mkdir()
    size = f"size={megabytes}m"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield folder
    finally:
        # memory-mapped weights may still be open in this process
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.soak
def test_commands_on_a_small_disk_with_little_space(commands, tmp_path, capsys):
    ended, wrong = [], []
    with disk(tmp_path / "disk", 64) as folder:
        workspace = InProcessWorkspace(folder / "here")
        for job in undisturbed(workspace, tmp_path / "states", commands):
            for kilobytes in (0, 4, 16, 40, 64, 100, 160, 250, 400, 800):
                ended.append(filled(workspace, job, kilobytes, wrong))
    with capsys.disabled():
        print(f"\n{len(ended)} disks of {len(commands)} commands, {ended.count(2)} were too small")
    assert not wrong, "\n".join(wrong)
    assert 0 < ended.count(2) < len(ended)


def filled(workspace, job, kilobytes, wrong) -> int:
    """Run a command with so much free space, and return its exit code."""
    workspace.start_from(job.before)
    before, label = workspace.tree(), f"{job.name} ({kilobytes} kB)"
    filler = workspace.folder.parent / "filler"
    free_space = os.statvfs(workspace.folder)
    with filler.open("wb") as opened:
        os.posix_fallocate(
            opened.fileno(), 0, free_space.f_bavail * free_space.f_frsize - kilobytes * 1024
        )
    done = workspace.run(job.arguments)
    filler.unlink()
    wrong += [] if done.returncode == 0 else refused(label, done)
    wrong += harmed(workspace, job, before, label)
    wrong += [f"{label}: {path} is left over" for path in workspace.temporary()]
    repeated = workspace.run(job.arguments)
    wrong += [f"{label}: then {repeated.stderr[-300:]}"] if repeated.returncode else []
    wrong += [f"{label}: {path} differs in the end" for path in differing(job, workspace.tree())]
    return done.returncode
