"""Commands that are killed at random moments and started again: what is on the disk after each
kill, and whether the end is that of an undisturbed run.
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
TIMES = ("seconds", "total_seconds", "created", "when")  # of a result: they differ from run to run
STATE = "healing.safetensors"  # in a run: of a training that goes on after a kill
DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
Tree = dict[str, str]  # the files below a folder, and what they hold


@dataclass(frozen=True)
class Job:
    """A command and the state of its folder before and after it, undisturbed.

    events: how many of each kind a run has. output: what it prints.
    """

    name: str
    arguments: tuple[str, ...]
    before: Path
    after: Tree
    events: dict[str, int]
    output: str


@dataclass(frozen=True)
class Outcome:
    """Of one job: how often it was killed, and what is wrong."""

    kills: int
    wrong: tuple[str, ...]


class Workspace:
    """A folder where commands run: its cache, its temporary files and what they write are in it."""

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
        """The finished process; it is killed, or sent another signal, at that event, 0 for none."""
        environment = os.environ | {
            "LRCORE_CACHE": str(self.folder / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(KILLED), str(int(number)), kind, str(at), *arguments]
        return fresh.project().run(command, environment, self.folder)

    def tree(self) -> Tree:
        """All files that have their name; what is in a draft or offloaded is left out."""
        return {
            str(path.relative_to(self.folder)): self.digest(path)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not self.is_temporary(path)
        }

    def is_temporary(self, path: Path) -> bool:
        parts = path.relative_to(self.folder).parts
        return any(DRAFT.fullmatch(part) for part in parts) or parts[:2] == ("cache", "offloaded")

    def temporary(self) -> list[str]:
        """Drafts, offloaded tensors and temporary files."""
        return [
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if (self.is_temporary(path) and path.name != "offloaded") or path.parent.name == "tmp"
        ]

    def models(self) -> set[tuple]:
        """What every run that is there holds, each kind of run once."""
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
        """What a file holds, without times and the name of this folder."""
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
        """JSON without times and the name of this folder."""
        values = without_times(json.loads(text.replace(str(self.folder), "HERE")))
        return json.dumps(values, sort_keys=True)


def without_times(values):
    """JSON-able values without those of the keys in TIMES."""
    if isinstance(values, dict):
        return {name: without_times(value) for name, value in values.items() if name not in TIMES}
    if isinstance(values, list):
        return [without_times(value) for value in values]
    return values


def undisturbed(
    workspace: Workspace, states: Path, commands: dict[str, Sequence[str]]
) -> list[Job]:
    """The commands one after another, each run to its end, with the states between them."""
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
    """Start a job, kill it at a random moment, start it again, ..., and let it end."""
    workspace.start_from(job.before)
    before, wrong, count = workspace.tree(), [], 0
    for number in range(kills):
        kind = chance.choice(["calls", "files"])
        at = chance.randrange(1, job.events[kind] + 1)
        done = workspace.run(job.arguments, kind, at)
        count += done.returncode == -signal.SIGKILL
        label = f"{job.name}, kill {number + 1} ({kind} {at})"
        if done.returncode not in (0, -signal.SIGKILL):
            wrong.append(f"{label}: it ended with {done.returncode}: {done.stderr[-300:]}")
        wrong += [f"{label}: {path} is not whole" for path in half_written(workspace, job, before)]
    done = workspace.run(job.arguments)
    if done.returncode != 0:
        wrong.append(f"{job.name}: {done.stderr[-300:]}")
    elif workspace.plain(done.stdout) != job.output:
        wrong.append(f"{job.name}: it prints {done.stdout}, undisturbed {job.output}")
    tree = workspace.tree()
    differing = [path for path in job.after.keys() | tree if job.after.get(path) != tree.get(path)]
    wrong += [f"{job.name}: {path} is not that of an undisturbed run" for path in sorted(differing)]
    return Outcome(
        count, (*wrong, *(f"{job.name}: {path} is left" for path in workspace.temporary()))
    )


def interrupted(workspace: Workspace, job: Job, chance: random.Random) -> Outcome:
    """Press Ctrl+C at a random moment of a job, then do it again."""
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
        wrong.append(f"{label}: it does not go on: {repeated.stderr[-300:]}")
    wrong += [f"{label}: {path} is left" for path in workspace.temporary()]
    return Outcome(done.returncode == 130, tuple(wrong))


def ends_well(stderr: str) -> bool:
    """Whether a command that was interrupted says so, and nothing of its inside."""
    *_, last = [line for line in stderr.splitlines() if not line[:1].isdigit()]
    return last == "canceled" and "Traceback" not in stderr and "Exception ignored" not in stderr


def harmed(workspace: Workspace, job: Job, before: Tree, label: str) -> list[str]:
    """What is wrong with the files after a command that met a fault: half written, or gone."""
    wrong = [f"{label}: {path} is not whole" for path in half_written(workspace, job, before)]
    return wrong + [
        f"{label}: {path} is gone" for path in sorted(before.keys() - workspace.tree().keys())
    ]


def error_lines(done: subprocess.CompletedProcess) -> list[str]:
    """What a command says of why it ended: one line, as it should be."""
    return [line for line in done.stderr.splitlines() if line.startswith("error:")]


def half_written(workspace: Workspace, job: Job, before: Tree) -> list[str]:
    """The files under a name of their own that are neither as before nor as in the end."""
    try:
        tree = workspace.tree()
    except Exception as error:  # a file that cannot even be read
        return [repr(error)]
    allowed = {"the state of a healing"}
    return [
        path
        for path, held in tree.items()
        if held not in {before.get(path), job.after.get(path)} | allowed
    ]
