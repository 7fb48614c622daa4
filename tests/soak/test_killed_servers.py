"""A server that is killed during a job: the next server offers the job again, and it ends like an
undisturbed one.
"""

import json
import os
import random
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import fresh
import pytest
from killing import Workspace, without_times

import lrcore
from workbench.jobs import CompressJob, ExportJob, HealJob, QuantizeJob, SweepJob
from workbench.state.job import Job

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
SERVED = Path(__file__).with_name("served.py")
ROUNDS, KILLS = 20, 3  # repetitions per job, and kills in a row


class Bench(Workspace):
    """Folder with runs, a cache, and a job."""

    def run(self, arguments=(), kind="files", at=0):
        environment = os.environ | {"LRCORE_CACHE": "cache", "OMP_NUM_THREADS": "1"}
        command = [str(SERVED), kind, str(at), "job.json"]
        return fresh.page().run(command, environment, self.folder)

    def begin(self, task: "Task") -> None:
        self.start_from(task.state)
        (self.folder / "job.json").write_text(json.dumps(task.job.to_dict()))


@dataclass(frozen=True)
class Task:
    """Job and its initial folder, or None for an empty one."""

    job: Job
    state: Path | None = None


@pytest.fixture(scope="module")
def jobs(tiny_llama, story_file) -> list[Task]:
    recipe = lrcore.Recipe(str(tiny_llama), data=str(story_file), samples=2, seq_len=16, ratio=0.3)
    measured = lrcore.EvaluationSettings(str(story_file), 2, 16).held_out_from([recipe.data])
    sweep = SweepJob(recipe, ("svd", "a3"), (0.2, 0.4), evaluation=measured)
    probed = CompressJob(recipe.with_(policy="probed"), "its name", measured)
    return [Task(job) for job in (CompressJob(recipe, "its name", measured), probed, sweep)]


@pytest.fixture(scope="module")
def later_jobs(jobs, tmp_path_factory) -> list[Task]:
    """Return jobs that need an existing run."""
    workspace = Bench(tmp_path_factory.mktemp("run") / "here")
    workspace.begin(jobs[0])
    done = workspace.run()
    assert done.returncode == 0, done.stderr
    shutil.rmtree(workspace.folder / "runs" / ".jobs")
    (run,) = [file.parent.name for file in workspace.folder.glob("runs/[!.]*/report.json")]
    healing = lrcore.Healing(samples=8, seq_len=16, steps=40, batch=2, test_samples=0)
    made = [QuantizeJob(run, 8), HealJob(run, healing)]
    made += [ExportJob(run, target) for target in ("transformers", "llama.cpp")]
    return [Task(job, workspace.folder) for job in made]


def killed(
    workspace: Bench, task: Task, chance: random.Random, kills: int, kinds=("calls", "files")
) -> tuple[int, list[str]]:
    """Return the number of kills of a server, and the errors."""
    job = task.job
    workspace.begin(task)
    before = workspace.models()
    done = workspace.run(kind=kinds[0])
    assert done.returncode == 0, done.stderr
    events = dict(zip(("files", "calls"), map(int, done.stderr.split()[-2:]), strict=True))
    models, result = workspace.models(), without_times(json.loads(done.stdout))
    workspace.begin(task)
    count, wrong = 0, []
    for _ in range(kills):
        kind = chance.choice(kinds)
        at = chance.randrange(1, events[kind] + 1)
        done = workspace.run(kind=kind, at=at)
        count += done.returncode == -signal.SIGKILL
        if done.returncode not in (0, -signal.SIGKILL):
            wrong.append(f"{job.kind} ({kind} {at}): {done.stderr[-600:]}")
        if not workspace.models() <= models | before:
            wrong.append(f"{job.kind} ({kind} {at}): a run is incomplete")
    done = workspace.run()
    if done.returncode:
        return count, [*wrong, f"{job.kind}: {done.stderr[-600:]}"]
    end = without_times(json.loads(done.stdout))
    if workspace.models() != models or {s for s, _ in end["states"]} != {"done"}:
        wrong.append(f"{job.kind}: it ends with {end['states']}, or other models")
    # A compression that is killed after saving its run adds a second, unevaluated run.
    complete_runs = [run for run in end["runs"] if run[2]]
    if [run for run in result["runs"] if run not in complete_runs] or (
        job.kind == "sweep" and len(end["runs"]) != len(result["runs"])
    ):
        wrong.append(f"{job.kind}: the runs are {end['runs']}, expected {result['runs']}")
    return count, wrong


def test_a_job_of_a_killed_server_ends_like_an_undisturbed_one(jobs, tmp_path):
    chance = random.Random(17)
    kills, wrong = killed(Bench(tmp_path / "here"), jobs[0], chance, 2, kinds=("files",))
    assert not wrong, "\n".join(wrong)
    assert kills


@pytest.mark.soak
def test_many_kills_of_servers(jobs, later_jobs, tmp_path, capsys):
    chance = random.Random(SEED)
    kills, wrong = Counter(), []
    for _ in range(max(1, round(ROUNDS * SHARE))):
        for task in [*jobs, *later_jobs]:
            count, lines = killed(Bench(tmp_path / "here"), task, chance, KILLS)
            kills[task.job.kind] += count
            wrong += lines
    with capsys.disabled():
        print(f"\nseed {SEED}: {kills.total()} kills of servers: {dict(kills)}")
    assert not wrong, "\n".join(wrong)
