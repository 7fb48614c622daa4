"""Fixture with the commands that are disturbed."""

import pytest
import yaml


@pytest.fixture(scope="module")
def commands(tiny_llama, story_file, tmp_path_factory) -> dict[str, list]:
    """Return the commands by name; each uses the results of the previous ones."""
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
        "factorize": ["allocate", tiny_llama, *windows, "--method", "modegpt"],
        "probe": ["allocate", tiny_llama, *windows, "--policy", "probed"],
        "search": ["allocate", tiny_llama, *windows, "--policy", "mix"],
        "compress": ["compress", tiny_llama, *windows, "--ratio", 0.3, "--out", "small"],
        "replace": ["compress", tiny_llama, *windows, "--ratio", 0.4, "--out", "small"],
        "offload": ["compress", tiny_llama, *windows, "--offload", "--out", "offloaded"],
        "evaluate": ["evaluate", "small", *measure],
        "heal": ["heal", "small", *train, "--out", "healed"],
        "quantise": ["quantize", "small", "quantised", "--group", 8],
        "export": ["export", "small", "exported"],
        "sweep": ["sweep", sweep, "--out", "sweep"],
    }
