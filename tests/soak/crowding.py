"""Commands whose disk is full from some moment on, in this process.

A fault of the kind "names" refuses every file, folder and new name from the n-th on that is made
below a folder; one of the kind "bytes" lets no file grow beyond n bytes, whichever library writes
it.
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
    """Below a folder nothing can be written from the n-th time on; 0: it always can."""

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


sys.addaudithook(_hook)  # for good: it does nothing but where a fault is armed


class InProcessWorkspace(Workspace):
    """A folder where commands run in this process; cache: their cache, where it is not in it."""

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
        """The folder for offloaded tensors stays as long as this process."""
        return [path for path in super().temporary() if not path.startswith("cache/offloaded")]


def crowded(workspace: Workspace, job: Job, kind: str, at: int) -> list[str]:
    """What is wrong where a command meets a full disk, and is run again once there is room."""
    workspace.start_from(job.before)
    before, label = workspace.tree(), f"{job.name} ({kind} {at})"
    done = workspace.run(job.arguments, kind, at)
    wrong = [] if done.returncode == 0 else [*refused(label, done)]
    wrong += harmed(workspace, job, before, label)
    wrong += [f"{label}: {path} is left" for path in workspace.temporary()]
    done = workspace.run(job.arguments)
    if done.returncode or workspace.plain(done.stdout) != job.output:
        wrong.append(f"{label}: then it prints {done.stdout}{done.stderr[-300:]}")
    return wrong + [
        f"{label}: {path} differs in the end" for path in differing(job, workspace.tree())
    ]


def differing(job: Job, tree: Tree) -> list[str]:
    """The files that are not those of an undisturbed run."""
    return sorted(path for path in job.after.keys() | tree if job.after.get(path) != tree.get(path))


def refused(label: str, done: subprocess.CompletedProcess) -> Iterator[str]:
    """What is wrong with how a command says that the disk is full."""
    lines = error_lines(done)
    if done.returncode != 2 or len(lines) != 1 or "Traceback" in done.stderr:
        yield f"{label}: it ends with {done.returncode}: {done.stderr[-300:]}"
    elif not re.search("cannot be written: the .*disk.* are free in '", lines[0]):
        yield f"{label}: it does not say what is full: {lines[0]}"
    if done.stdout:
        yield f"{label}: it prints {done.stdout[:80]}"
