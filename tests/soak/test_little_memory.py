"""Commands with too little memory: one error line, no incomplete files, and success of the same
command with enough memory.
"""

import json
import os
import random
from pathlib import Path

import fresh
import pytest
from crowding import differing
from killing import Job, Workspace, error_lines, harmed, undisturbed

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
LIMITED = Path(__file__).with_name("limited.py")
ROUNDS = 20
# Messages of libraries that end the process themselves or fail without a Python exception.
ENDED = (
    "libgomp: Thread creation failed",
    "PanicException: The global thread pool has not been initialized",
    "error return without exception set",
)


class Narrow(Workspace):
    """Folder in which commands run in a process with limited memory; 0: unlimited."""

    def run(self, arguments, kind="bytes", at=0):
        environment = os.environ | {
            "LRCORE_CACHE": str(self.folder / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(LIMITED), str(at), *arguments]
        done = fresh.project().run(command, environment, self.folder)
        done.stderr += " 0"  # the second number of events
        return done

    def plain(self, text):
        """Round numbers to 4 digits: with little memory, libraries use other algorithms, with
        different last bits.
        """
        values = json.loads(super().plain(text), parse_float=lambda digits: f"{float(digits):.4g}")
        return json.dumps(values)


def narrowed(workspace: Workspace, job: Job, at: int) -> tuple[int, list[str]]:
    """Return the exit code of a command with little memory, and the errors."""
    workspace.start_from(job.before)
    before, label = workspace.tree(), f"{job.name} ({at:,} bytes)"
    done = workspace.run(job.arguments, at=at)
    lines = error_lines(done)
    wrong, ended = [], any(words in done.stderr for words in ENDED)
    if done.returncode and not ended and (done.returncode, len(lines), done.stdout) != (2, 1, ""):
        wrong.append(f"{label}: exit code {done.returncode}: {done.stderr[-600:]}")
    elif done.returncode and not ended and "Not enough memory" not in lines[0]:
        wrong.append(f"{label}: no message about memory: {lines[0]}")
    wrong += harmed(workspace, job, before, label)
    wrong += [f"{label}: {path} is left over" for path in workspace.temporary()]
    repeated = workspace.run(job.arguments)
    if repeated.returncode or workspace.plain(repeated.stdout) != job.output:
        wrong.append(f"{label}: then {repeated.stderr[-300:]}")
    wrong += [f"{label}: {path} differs in the end" for path in differing(job, workspace.tree())]
    return done.returncode, wrong


@pytest.mark.soak
def test_commands_with_too_little_memory_report_it(commands, tmp_path, capsys):
    workspace, chance, codes, wrong = Narrow(tmp_path / "here"), random.Random(SEED), [], []
    for job in undisturbed(workspace, tmp_path / "states", commands):
        for _ in range(ROUNDS):
            code, problems = narrowed(
                workspace, job, chance.randrange(1, max(2, job.events["files"]))
            )
            codes.append(code)
            wrong += problems
    with capsys.disabled():
        print(f"\nseed {SEED}: {len(codes)} limits of memory, {codes.count(2)} were too small")
    assert not wrong, "\n".join(wrong)
