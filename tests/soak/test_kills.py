"""Nothing is lost and nothing is left by SIGKILL, at whatever moment.

The long form (`make soak`) kills every command many times; LRCORE_SOAK_SEED gives other moments.
"""

import os
import random

import pytest
import yaml
from killing import Place, killed, undisturbed

SEED = int(os.environ.get("LRCORE_SOAK_SEED", "17"))
ROUNDS, KILLS = 6, 3  # rounds over all commands, kills in a row before one may end


@pytest.fixture(scope="module")
def commands(tiny_llama, story_file, tmp_path_factory) -> dict[str, list]:
    """The commands by name, each on what those before it have left."""
    windows = ["--data", story_file, "--samples", 4, "--seq-len", 32]
    measure = ["--data", story_file, "--samples", 4, "--seq-len", 32]
    train = ["--samples", 8, "--seq-len", 16, "--steps", 60, "--batch", 2, "--test-samples", 0]
    sweep = tmp_path_factory.mktemp("recipes") / "sweep.yaml"
    sweep.write_text(
        yaml.safe_dump(
            {
                "model": str(tiny_llama),
                "data": str(story_file),
                "samples": 4,
                "seq_len": 32,
                "methods": ["svd", "a3"],
                "ratios": [0.3],
                "evaluation": {"data": str(story_file), "samples": 4, "seq_len": 32},
            }
        )
    )
    return {
        "calibrate": ["calibrate", tiny_llama, *windows],
        "factorise": ["allocate", tiny_llama, *windows, "--method", "modegpt"],
        "probe": ["allocate", tiny_llama, *windows, "--policy", "probed"],
        "search": ["allocate", tiny_llama, *windows, "--policy", "mix"],
        "compress": ["compress", tiny_llama, *windows, "--ratio", 0.3, "--out", "small"],
        "replace": ["compress", tiny_llama, *windows, "--ratio", 0.4, "--out", "small"],
        "offload": ["compress", tiny_llama, *windows, "--offload", "--out", "offloaded"],
        "evaluate": ["evaluate", "small", *measure],
        "heal": ["heal", "small", *train, "--out", "healed"],
        "quantise": ["quantise", "small", "quantised", "--group", 8],
        "export": ["export", "small", "exported"],
        "sweep": ["sweep", sweep, "--out", "sweep"],
    }


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
