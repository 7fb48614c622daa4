"""Commands killed at random moments and started again: files after each kill, and equality of the
result with that of an undisturbed run.
"""

import csv
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fresh
from safetensors import safe_open

KILLED = Path(__file__).with_name("killed.py")
TIMES = ("seconds", "total_seconds", "created", "when")  # fields that differ between runs
STATE = "healing.safetensors"  # in a run: the state of healing, to be resumed after a kill
DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
Tree = dict[str, str]  # digests of the files below a folder


@dataclass(frozen=True)
class Job:
    """Command and the state of its folder before and after an undisturbed run.

    events: their number by kind. output: printed JSON.
    """

    name: str
    arguments: tuple[str, ...]
    before: Path
    after: Tree
    events: dict[str, int]
    output: str


@dataclass(frozen=True)
class Outcome:
    """Number of kills of a job, and the errors."""

    kills: int
    wrong: tuple[str, ...]


class Workspace:
    """Folder in which commands run, with their cache, temporary files and results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start_from(self, state: Path | None) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if state is None:
            self.folder.mkdir(parents=True)
        else:
            shutil.copytree(state, self.folder)
        for name in ("cache", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)

    def run(
        self,
        arguments: Sequence[str],
        kind: str = "files",
        at: int = 0,
        number: int = signal.SIGKILL,
    ):
        """Run a command, send a signal at the event `at` (0: none), and return the finished
        process.
        """
        environment = os.environ | {
            "LRCORE_CACHE": str(self.folder / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(KILLED), str(int(number)), kind, str(at), *arguments]
        return fresh.project().run(command, environment, self.folder)

    def tree(self) -> Tree:
        """Return the digests of all files but drafts and offloaded tensors."""
        return {
            str(path.relative_to(self.folder)): self.digest(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not self.is_temporary(path)
        }

    def is_temporary(self, path: Path) -> bool:
        parts = path.relative_to(self.folder).parts
        return any(DRAFT.fullmatch(part) for part in parts) or parts[:2] == ("cache", "offloaded")

    def temporary(self) -> list[str]:
        """Return drafts, offloaded tensors and temporary files."""
        return [
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if (self.is_temporary(path) and path.name != "offloaded") or path.parent.name == "tmp"
        ]

    def models(self) -> set[tuple]:
        """Return the set of file digests of the complete runs."""
        folders = [file.parent for file in self.folder.glob("runs/[!.]*/report.json")]
        return {
            tuple(
                (str(file.relative_to(folder)), self.digest(file))
                for file in sorted(folder.rglob("*"))
                if file.is_file() and not self.is_temporary(file) and file.name != STATE
            )
            for folder in folders
        }

    def digest(self, path: Path) -> str:
        """Return the digest of a file without times and the name of the folder."""
        if path.name.endswith(".healing.safetensors"):
            with safe_open(path, "pt"):
                return "the state of a healing"
        if path.suffix == ".json":
            return self.plain(path.read_text(encoding="utf-8"))
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as opened:
                rows = list(csv.DictReader(opened))
            return json.dumps([without_times(row) for row in rows])
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def plain(self, text: str) -> str:
        """Return JSON without times and the name of the folder."""
        values = without_times(json.loads(text.replace(str(self.folder), "HERE")))
        return json.dumps(values, sort_keys=True)


def without_times(values):
    """Remove the keys in TIMES from JSON values."""
    if isinstance(values, dict):
        return {name: without_times(value) for name, value in values.items() if name not in TIMES}
    if isinstance(values, list):
        return [without_times(value) for value in values]
    return values


def undisturbed(
    workspace: Workspace, states: Path, commands: dict[str, Sequence[str]]
) -> list[Job]:
    """Run the commands one after another to their ends, and return them with the states in
    between.
    """
    jobs = []
    workspace.start_from(None)
    for name, command in commands.items():
        arguments, before = (*map(str, command), "--json"), states / name
        shutil.copytree(workspace.folder, before)
        done = workspace.run(arguments)
        assert done.returncode == 0, done.stderr
        events = dict(zip(("files", "calls"), map(int, done.stderr.split()[-2:]), strict=True))
        jobs.append(
            Job(name, arguments, before, workspace.tree(), events, workspace.plain(done.stdout))
        )
    return jobs


def killed(workspace: Workspace, job: Job, chance: random.Random, kills: int) -> Outcome:
    """Kill a job at random moments, start it again, and let it end."""
    workspace.start_from(job.before)
    before, wrong, count = workspace.tree(), [], 0
    for number in range(kills):
        kind = chance.choice(["calls", "files"])
        at = chance.randrange(1, job.events[kind] + 1)
        done = workspace.run(job.arguments, kind, at)
        count += done.returncode == -signal.SIGKILL
        label = f"{job.name}, kill {number + 1} ({kind} {at})"
        if done.returncode not in (0, -signal.SIGKILL):
            wrong.append(f"{label}: exit code {done.returncode}: {done.stderr[-300:]}")
        wrong += [f"{label}: {path} is incomplete" for path in half_written(workspace, job, before)]
    done = workspace.run(job.arguments)
    if done.returncode != 0:
        wrong.append(f"{job.name}: {done.stderr[-300:]}")
    elif workspace.plain(done.stdout) != job.output:
        wrong.append(f"{job.name}: it prints {done.stdout}, expected {job.output}")
    tree = workspace.tree()
    differing = [path for path in job.after.keys() | tree if job.after.get(path) != tree.get(path)]
    wrong += [
        f"{job.name}: {path} differs from that of an undisturbed run" for path in sorted(differing)
    ]
    return Outcome(
        count, (*wrong, *(f"{job.name}: {path} is left over" for path in workspace.temporary()))
    )


def interrupted(workspace: Workspace, job: Job, chance: random.Random) -> Outcome:
    """Send Ctrl+C at a random moment of a job, and run it again."""
    workspace.start_from(job.before)
    before, kind = workspace.tree(), chance.choice(["calls", "files"])
    at = chance.randrange(1, job.events[kind] + 1)
    done, label = workspace.run(job.arguments, kind, at, signal.SIGINT), f"{job.name} ({kind} {at})"
    wrong = harmed(workspace, job, before, label)
    if done.returncode not in (0, 130) or (done.returncode and not ends_well(done.stderr)):
        wrong.append(f"{label}: {done.returncode}: {done.stderr[-600:]}")
    repeated = workspace.run(job.arguments)
    if (
        repeated.returncode
        or workspace.plain(repeated.stdout) != job.output
        or workspace.tree() != job.after
    ):
        wrong.append(f"{label}: it cannot be resumed: {repeated.stderr[-300:]}")
    wrong += [f"{label}: {path} is left over" for path in workspace.temporary()]
    return Outcome(done.returncode == 130, tuple(wrong))


def ends_well(stderr: str) -> bool:
    """Return whether an interrupted command reports only that it was canceled."""
    *_, last = [line for line in stderr.splitlines() if not line[:1].isdigit()]
    return last == "canceled" and "Traceback" not in stderr and "Exception ignored" not in stderr


def harmed(workspace: Workspace, job: Job, before: Tree, label: str) -> list[str]:
    """Return the files that a failed command left incomplete or deleted."""
    wrong = [f"{label}: {path} is incomplete" for path in half_written(workspace, job, before)]
    return wrong + [
        f"{label}: {path} is deleted" for path in sorted(before.keys() - workspace.tree().keys())
    ]


def error_lines(done: subprocess.CompletedProcess) -> list[str]:
    """Return the error lines of a command, of which there should be a single one."""
    return [line for line in done.stderr.splitlines() if line.startswith("error:")]


def half_written(workspace: Workspace, job: Job, before: Tree) -> list[str]:
    """Return the files with a final name that are neither in the state before nor after the
    command.
    """
    try:
        tree = workspace.tree()
    except Exception as error:  # unreadable file
        return [repr(error)]
    allowed = {"the state of a healing"}
    return [
        path
        for path, held in tree.items()
        if held not in {before.get(path), job.after.get(path)} | allowed
    ]
