"""A disk that is full at whichever write: one sentence, nothing half written, and the same command
works once there is room.

The long form (`make soak`) fails every write of every command, and fills a disk of its own.
"""

import os
import random
import subprocess
from contextlib import contextmanager

import pytest
from crowding import KINDS, Here, crowded, differing, refused
from killing import harmed, undisturbed

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
LIMITS = 12  # sizes of a file that are tried per command, in the long form


def test_a_full_disk_is_said_in_one_sentence_and_leaves_everything_as_it_was(commands, tmp_path):
    chosen = {name: commands[name] for name in ("compress", "replace")}
    place, chance = Here(tmp_path / "here"), random.Random(17)
    wrong = []
    for job in undisturbed(place, tmp_path / "states", chosen):
        for kind, most in zip(KINDS, job.events.values(), strict=True):
            wrong += crowded(place, job, kind, chance.randrange(1, most))
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_a_disk_that_is_full_at_every_write_of_every_command(commands, tmp_path, capsys):
    place, chance, count, wrong = Here(tmp_path / "here"), random.Random(SEED), 0, []
    for job in undisturbed(place, tmp_path / "states", commands):
        names, largest = job.events.values()
        sizes = chance.sample(range(1, largest), min(LIMITS, largest - 1))
        faults = [("names", at) for at in range(1, names + 1)] + [("bytes", at) for at in sizes]
        for kind, at in faults:
            wrong += crowded(place, job, kind, at)
        count += len(faults)
    with capsys.disabled():
        print(f"\nseed {SEED}: {count} faults of {len(commands)} commands")
    assert not wrong, "\n".join(wrong)


@contextmanager
def disk(folder, megabytes):
    """A file system of its own, in memory. Skips the test where none may be mounted."""
    folder.mkdir()
    size = f"size={megabytes}m"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    try:
        yield folder
    finally:
        # this process may still have files there open, as weights are that lie in their file
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.soak
def test_a_small_disk_with_less_and_less_room(commands, tmp_path, capsys):
    ended, wrong = [], []
    with disk(tmp_path / "disk", 64) as folder:
        place = Here(folder / "here")
        for job in undisturbed(place, tmp_path / "states", commands):
            for kilobytes in (0, 4, 16, 40, 64, 100, 160, 250, 400, 800):
                ended.append(filled(place, job, kilobytes, wrong))
    with capsys.disabled():
        print(f"\n{len(ended)} disks of {len(commands)} commands, {ended.count(2)} were too small")
    assert not wrong, "\n".join(wrong)
    assert 0 < ended.count(2) < len(ended)


def filled(place, job, kilobytes, wrong) -> int:
    """Run a command with so much room; its exit code."""
    place.start_from(job.before)
    before, what = place.tree(), f"{job.name} ({kilobytes} kB)"
    filler = place.folder.parent / "filler"
    left = os.statvfs(place.folder)
    with filler.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, left.f_bavail * left.f_frsize - kilobytes * 1024)
    done = place.run(job.arguments)
    filler.unlink()
    wrong += [] if done.returncode == 0 else refused(what, done)
    wrong += harmed(place, job, before, what)
    wrong += [f"{what}: {path} is left" for path in place.temporary()]
    again = place.run(job.arguments)
    wrong += [f"{what}: then {again.stderr[-300:]}"] if again.returncode else []
    wrong += [f"{what}: {path} differs in the end" for path in differing(job, place.tree())]
    return done.returncode
