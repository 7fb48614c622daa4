"""Commands on a disk that becomes full, run in this process.

A fault of kind "names" refuses the n-th and all later new files, folders and names below a folder;
a fault of kind "bytes" limits all files to n bytes, whatever library writes them.
"""

import errno
import io
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from killing import Job, Tree, Workspace, error_lines, harmed

from lrcore.cli import main

MAKING = ("os.mkdir", "os.rename", "os.link", "os.symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
KINDS = ("names", "bytes")


class Fault:
    """Fault that makes writes below a folder fail from the n-th one on; 0: never."""

    armed: "Fault | None" = None

    def __init__(self, folder: Path, kind: str, at: int) -> None:
        self.folder, self.kind, self.at, self.seen = str(folder), kind, at, 0

    def audit(self, event: str, arguments: tuple) -> None:
        if event not in MAKING and (event != "open" or not arguments[2] & WRITING):
            return
        path = arguments[1] if event == "os.rename" else arguments[0]
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(self.folder):
            return
        self.seen += 1
        if self.kind == "names" and 0 < self.at <= self.seen:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        Fault.armed = self
        if self.kind == "bytes" and self.at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.at, hard))
        try:
            yield
        finally:
            Fault.armed = None
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _hook(event: str, arguments: tuple) -> None:
    if Fault.armed is not None:
        Fault.armed.audit(event, arguments)


sys.addaudithook(_hook)  # permanent, but inactive unless a fault is armed


class InProcessWorkspace(Workspace):
    """Folder in which commands run in this process; cache: their cache, by default in the
    folder.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        super().__init__(folder)
        self.cache = cache or folder / "cache"

    def run(self, arguments: Sequence[str], kind: str = "names", at: int = 0):
        out, err, fault = io.StringIO(), io.StringIO(), Fault(self.folder, kind, at)
        with (
            pytest.MonkeyPatch.context() as patch,
            chdir(self.folder),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            patch.setenv("LRCORE_CACHE", str(self.cache))
            with fault():
                code = main(list(arguments))
        sizes = [path.stat().st_size for path in self.folder.rglob("*") if path.is_file()]
        err.write(f"\n{fault.seen} {max(sizes, default=0)}")
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def temporary(self) -> list[str]:
        """Return leftovers, without the folder for offloaded tensors, which exists as long as this
        process.
        """
        return [path for path in super().temporary() if not path.startswith("cache/offloaded")]


def crowded(workspace: Workspace, job: Job, kind: str, at: int) -> list[str]:
    """Return the errors of a command on a full disk, and of its repetition after space is freed."""
    workspace.start_from(job.before)
    before, label = workspace.tree(), f"{job.name} ({kind} {at})"
    done = workspace.run(job.arguments, kind, at)
    wrong = [] if done.returncode == 0 else [*refused(label, done)]
    wrong += harmed(workspace, job, before, label)
    wrong += [f"{label}: {path} is left over" for path in workspace.temporary()]
    done = workspace.run(job.arguments)
    if done.returncode or workspace.plain(done.stdout) != job.output:
        wrong.append(f"{label}: then it prints {done.stdout}{done.stderr[-300:]}")
    return wrong + [
        f"{label}: {path} differs in the end" for path in differing(job, workspace.tree())
    ]


def differing(job: Job, tree: Tree) -> list[str]:
    """Return the files that differ from those of an undisturbed run."""
    return sorted(path for path in job.after.keys() | tree if job.after.get(path) != tree.get(path))


def refused(label: str, done: subprocess.CompletedProcess) -> Iterator[str]:
    """Return the errors in the message of a command about a full disk."""
    lines = error_lines(done)
    if done.returncode != 2 or len(lines) != 1 or "Traceback" in done.stderr:
        yield f"{label}: exit code {done.returncode}: {done.stderr[-300:]}"
    elif not re.search("cannot be written: the .*disk.* are free in '", lines[0]):
        yield f"{label}: no message about a full disk: {lines[0]}"
    if done.stdout:
        yield f"{label}: it prints {done.stdout[:80]}"
