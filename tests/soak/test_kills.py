"""Nothing is lost and nothing is left by SIGKILL, at whatever moment.

The long form (`make soak`) kills every command many times; LRCORE_SOAK_SEED gives other moments.
"""

import os
import random

import pytest
from killing import Place, killed, undisturbed

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
ROUNDS, KILLS = 6, 3  # rounds over all commands, kills in a row before one may end


def test_after_two_kills_each_the_end_is_that_of_an_undisturbed_run(commands, tmp_path):
    chosen = {name: commands[name] for name in ("compress", "replace", "heal", "sweep")}
    chosen["compress"] = [*chosen["compress"], "--policy", "probed"]
    place, chance = Place(tmp_path / "here"), random.Random(17)
    jobs = undisturbed(place, tmp_path / "states", chosen)
    wrong = [line for job in jobs for line in killed(place, job, chance, 2).wrong]
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_many_kills_of_every_command(commands, tmp_path, capsys):
    place, chance = Place(tmp_path / "here"), random.Random(SEED)
    jobs = undisturbed(place, tmp_path / "states", commands)
    outcomes = [killed(place, job, chance, KILLS) for _ in range(ROUNDS) for job in jobs]
    with capsys.disabled():
        print(f"\nseed {SEED}: {sum(one.kills for one in outcomes)} kills of {len(jobs)} commands")
    wrong = [line for one in outcomes for line in one.wrong]
    assert not wrong, "\n".join(wrong)
