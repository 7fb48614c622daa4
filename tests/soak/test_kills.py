"""Commands killed by SIGKILL at random moments: no data are lost, and no temporary files are left
over.

The long form (`make soak`) kills each command many times; LRCORE_SOAK_SEED selects other moments,
LRCORE_SOAK_SHARE a smaller number.
"""

import os
import random

import pytest
from killing import Job, Workspace, interrupted, killed, undisturbed

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
SHARE = float(os.environ.get("LRCORE_SOAK_SHARE", "1"))
ROUNDS, KILLS = 70, 3  # repetitions per command, and kills in a row
COMMANDS = (  # in the order of conftest.py
    "calibrate",
    "factorize",
    "probe",
    "search",
    "compress",
    "replace",
    "offload",
    "evaluate",
    "heal",
    "quantise",
    "export",
    "sweep",
)


def test_after_two_kills_a_command_ends_like_an_undisturbed_one(commands, tmp_path):
    chosen = {name: commands[name] for name in ("compress", "replace", "heal", "sweep")}
    chosen["compress"] = [*chosen["compress"], "--policy", "probed"]
    workspace, chance = Workspace(tmp_path / "here"), random.Random(17)
    jobs = undisturbed(workspace, tmp_path / "states", chosen)
    wrong = [line for job in jobs for line in killed(workspace, job, chance, 2).wrong]
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def jobs(commands, tmp_path_factory) -> dict[str, Job]:
    """Return all commands by name, each run once without a kill."""
    assert tuple(commands) == COMMANDS
    folder = tmp_path_factory.mktemp("undisturbed")
    done = undisturbed(Workspace(folder / "here"), folder / "states", commands)
    return {job.name: job for job in done}


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS)
def test_many_kills_of_a_command(jobs, command, tmp_path, capsys):
    workspace, chance = Workspace(tmp_path / "here"), random.Random(f"{SEED} {command}")
    rounds = range(max(1, round(ROUNDS * SHARE)))
    outcomes = [killed(workspace, jobs[command], chance, KILLS) for _ in rounds]
    with capsys.disabled():
        print(f"\nseed {SEED}: {sum(outcome.kills for outcome in outcomes)} kills of {command}")
    wrong = [line for outcome in outcomes for line in outcome.wrong]
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_at_many_moments_of_a_command(jobs, command, tmp_path, capsys):
    workspace, chance = Workspace(tmp_path / "here"), random.Random(f"{SEED} Ctrl+C {command}")
    rounds = range(max(1, round(ROUNDS * SHARE)))
    outcomes = [interrupted(workspace, jobs[command], chance) for _ in rounds]
    with capsys.disabled():
        print(
            f"\nseed {SEED}: {sum(outcome.kills for outcome in outcomes)} interrupts of {command}"
        )
    wrong = [line for outcome in outcomes for line in outcome.wrong]
    assert not wrong, "\n".join(wrong)
